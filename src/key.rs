//! Keys: the exact string is what decides, its 128-bit digest is what finds.

use std::fmt;

use blake2::Blake2b;
use blake2::digest::Digest as _;
use blake2::digest::consts::U16;

/// Longest key accepted, in bytes of UTF-8.
pub const MAX_KEY_BYTES: usize = 4096;

const SEPARATOR: char = '@';

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
}

impl<'key> Hashed<'key> {
    pub(crate) fn of(key: &'key (impl AsRef<str> + ?Sized)) -> Self {
        let key = key.as_ref();
        Self { key, digest: Digest::of(key) }
    }
}

/// The engine that keys belong to. In the store each of its keys begins with its name and `#`, so that no other engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity(String);

impl Identity {
    /// Longest name, in bytes.
    pub const MAX_BYTES: usize = 64;

    const MARK: char = '#';

    /// The engine of this name; none if it is empty, too long, or has other characters than ASCII letters, digits, `.`, `_` and `-`.
    pub fn named(name: &str) -> Option<Self> {
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_name = (1..=Self::MAX_BYTES).contains(&name.len()) && name.bytes().all(is_fit);
        is_name.then(|| Self(name.to_owned()))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// `key` as it is stored.
    pub(crate) fn qualify(&self, key: &str) -> String {
        format!("{}{}{key}", self.0, Self::MARK)
    }

    /// The key that is stored as `stored`; none if it belongs to another engine.
    pub(crate) fn own<'key>(&self, stored: &'key str) -> Option<&'key str> {
        stored.strip_prefix(&*self.0)?.strip_prefix(Self::MARK)
    }
}

/// Whose chunk a key names: the model and, where there is one, the cache salt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace<'key> {
    /// Model name; empty for a key that is not of LMCache's form.
    pub model: &'key str,
    /// Cache salt; empty for an unsalted key.
    pub salt: &'key str,
}

impl<'key> Namespace<'key> {
    /// Splits `model@kv_rank@object_group@chunk_hash[@cache_salt]`, the form LMCache 0.5.6 writes in
    /// `native_connector_l2_adapter.py`, and that of 0.4.3 to 0.4.6, which has no group. Any other string belongs to the nameless
    /// namespace.
    pub(crate) fn of(key: &'key str) -> Self {
        let mut fields = key.split(SEPARATOR);
        let parts = [fields.next(), fields.next(), fields.next(), fields.next(), fields.next()];
        let (model, salt) = match (parts, fields.next()) {
            ([Some(model), Some(rank), Some(hash), salt, None], None) if is_old(rank, hash) => {
                (model, salt)
            }
            ([Some(model), Some(_), Some(_), Some(_), salt], None) => (model, salt),
            _ => ("", None),
        };
        Self { model, salt: salt.unwrap_or_default() }
    }

    /// The namespace of `key` that was recorded with this fingerprint: an older kvring knew fewer forms of keys.
    pub(crate) fn recorded(key: &'key str, fingerprint: u64) -> Self {
        let now = Self::of(key);
        let known = [now, Self { salt: "", ..now }];
        let recorded = known.into_iter().find(|one| one.fingerprint() == fingerprint);
        recorded.unwrap_or(Self { model: "", salt: "" })
    }

    /// The namespace with this [`Namespace::name`].
    pub(crate) fn called(name: &'key str) -> Self {
        let (model, salt) = name.split_once(SEPARATOR).unwrap_or((name, ""));
        Self { model, salt }
    }

    /// `model@salt`, or the model alone where there is no salt.
    pub(crate) fn name(&self) -> String {
        match self.salt {
            "" => self.model.to_owned(),
            salt => format!("{}{SEPARATOR}{salt}", self.model),
        }
    }

    /// The same for errors and logs, which are not to tell a salt.
    pub(crate) fn without_salt(&self) -> String {
        let salt = if self.salt.is_empty() { "" } else { "@..." };
        format!("{}{salt}", self.model)
    }

    /// 64-bit fingerprint kept in each record, so that a namespace can be told without its key.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = Blake2b::<U16>::new();
        hasher.update(self.model.as_bytes());
        hasher.update([0]);
        hasher.update(self.salt.as_bytes());
        let bytes: [u8; 16] = hasher.finalize().into();
        bytemuck::cast::<_, [u64; 2]>(bytes)[0]
    }
}

/// Whether a rank is followed by a chunk hash, as before LMCache 0.4.7. A group has fewer digits than any hash.
fn is_old(rank: &str, third: &str) -> bool {
    let is_hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    rank.len() >= 8 && third.len() >= 8 && is_hexadecimal(rank) && is_hexadecimal(third)
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
    fn namespace_of_lmcache_keys() {
        let plain = Namespace::of("meta/llama@00000001@0@abcd");
        assert_eq!((plain.model, plain.salt), ("meta/llama", ""));
        let salted = Namespace::of("meta/llama@00000001@0@abcd@tenant");
        assert_eq!((salted.model, salted.salt), ("meta/llama", "tenant"));
        assert_ne!(plain.fingerprint(), salted.fingerprint());
    }

    #[test]
    fn namespace_of_older_keys() {
        let hash = "5f0c7e2a".repeat(8);
        let plain = format!("meta/llama@01000100@{hash}");
        assert_eq!(Namespace::of(&plain), Namespace { model: "meta/llama", salt: "" });
        let salted = format!("{plain}@tenant");
        assert_eq!(Namespace::of(&salted), Namespace { model: "meta/llama", salt: "tenant" });
        // As they were recorded before.
        let before =
            [Namespace { model: "", salt: "" }, Namespace { model: "meta/llama", salt: "" }];
        for (key, before) in [&plain, &salted].into_iter().zip(before) {
            assert_eq!(Namespace::recorded(key, before.fingerprint()), before);
            let now = Namespace::of(key);
            assert_eq!(Namespace::recorded(key, now.fingerprint()), now);
        }
        // A group in place of the hash.
        let present = format!("meta/llama@01000100@1f@{hash}");
        assert_eq!(Namespace::of(&present), Namespace { model: "meta/llama", salt: "" });
    }

    #[test]
    fn names_lead_back() {
        for key in ["meta/llama@00000001@0@abcd", "meta/llama@00000001@0@abcd@tenant", "other"] {
            let namespace = Namespace::of(key);
            assert_eq!(Namespace::called(&namespace.name()), namespace);
        }
        assert_eq!(Namespace::of("m@1@0@a@s").name(), "m@s");
    }

    #[test]
    fn an_identity_is_part_of_the_namespace() {
        let identity = Identity::named("fp8-tp2").unwrap();
        let stored = identity.qualify("meta/llama@1@0@ab@tenant");
        assert_eq!(Namespace::of(&stored).name(), "fp8-tp2#meta/llama@tenant");
        assert_eq!(identity.own(&stored), Some("meta/llama@1@0@ab@tenant"));
        for other in ["meta/llama@1@0@ab", "fp8#x@1@0@ab", "fp8-tp2x#y@1@0@ab", "fp8-tp2@1@0@ab"] {
            assert_eq!(identity.own(other), None, "{other}");
        }
        for name in ["", "a b", "a#b", "a@b", "\u{e4}", &"x".repeat(65)] {
            assert_eq!(Identity::named(name), None, "{name}");
        }
    }

    #[test]
    fn other_strings_are_nameless() {
        for key in ["", "plain", "a@b@c", "a@b@c@d@e@f"] {
            assert_eq!(Namespace::of(key), Namespace { model: "", salt: "" }, "{key}");
        }
    }

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
