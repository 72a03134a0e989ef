//! Keys: the exact string is what decides, its 128-bit digest is what finds.

use std::fmt;

use blake2::Blake2b;
use blake2::digest::Digest as _;
use blake2::digest::consts::U16;

use crate::base::buffer::{ANY_VARIANT, Variant};

mod syntax;

pub(crate) use syntax::Namespace;
pub use syntax::{
    Identity, ObjectKey, engine_namespace, is_of_model, part_key, rank_prefix, salt_of,
};

/// Longest key accepted, in bytes of UTF-8.
pub const MAX_KEY_BYTES: usize = 4096;

/// BLAKE2b-128 of a key. Finds an entry; the exact key stored beside it confirms the find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub(crate) [u64; 2]);

impl Digest {
    /// Digest of `key`'s UTF-8 bytes.
    pub fn of(key: &str) -> Self {
        let bytes: [u8; 16] = Blake2b::<U16>::digest(key.as_bytes()).into();
        Self(bytemuck::cast(bytes))
    }

    pub(crate) fn bytes(self) -> [u8; 16] {
        bytemuck::cast(self.0)
    }

    /// The bits by which the lookup table of a shard tells digests apart.
    pub(crate) fn tag(self) -> u32 {
        (self.0[0] >> 32) as u32
    }

    /// The bits that place the digest inside a hash table.
    pub(crate) fn table_hash(self) -> u64 {
        self.0[0]
    }

    /// The bits that choose a shard; independent of [`Digest::table_hash`].
    pub(crate) fn shard_hash(self) -> u64 {
        self.0[1]
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", u128::from_be_bytes(self.bytes()))
    }
}

/// A key with its digest.
#[derive(Clone, Copy)]
pub(crate) struct Hashed<'key> {
    pub(crate) key: &'key str,
    pub(crate) digest: Digest,
    /// Which chunk is asked for; any if there is none.
    pub(crate) variant: Option<AskedVariant>,
}

/// The chunks that are an answer to who asks for one of a variant.
#[derive(Clone, Copy)]
pub(crate) struct AskedVariant([Variant; 2]);

impl AskedVariant {
    /// Variants are stored with their epoch.
    pub(crate) fn new(variant: Variant, epoch: Variant) -> Self {
        Self([variant ^ epoch, ANY_VARIANT ^ epoch])
    }

    pub(crate) fn is_met_by(self, stored: Variant) -> bool {
        self.0.contains(&stored)
    }
}

impl<'key> Hashed<'key> {
    pub(crate) fn of(key: &'key (impl AsRef<str> + ?Sized)) -> Self {
        let key = key.as_ref();
        Self { key, digest: Digest::of(key), variant: None }
    }
}

/// Fingerprints of the namespaces of many keys. Those of one batch are mostly in one: it is hashed once.
#[derive(Default)]
pub(crate) struct Fingerprints<'key> {
    last: Option<(Namespace<'key>, u64)>,
}

impl<'key> Fingerprints<'key> {
    /// [`Namespace::fingerprint`] of the namespace of `key`.
    pub(crate) fn of(&mut self, key: &'key str) -> u64 {
        let namespace = Namespace::of(key);
        match self.last {
            Some((last, fingerprint)) if last == namespace => fingerprint,
            _ => self.last.insert((namespace, namespace.fingerprint())).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_of_many_keys() {
        let mut fingerprints = Fingerprints::default();
        for key in
            ["one@1@0@ab", "one@2@0@cd", "one@1@0@ab@salt", "two@1@0@ab", "other", "one@1@0@ef"]
        {
            assert_eq!(fingerprints.of(key), Namespace::of(key).fingerprint(), "{key}");
        }
    }

    #[test]
    fn digest_is_blake2b_128() {
        // Reference: Python's hashlib.blake2b(b"abc", digest_size=16).
        let bytes: [u8; 16] = bytemuck::cast(Digest::of("abc").0);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "cf4ab791c62b8d2b2109c90275287816");
    }
}
