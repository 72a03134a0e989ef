//! The one syntax of keys: what separates their fields, and which fields there are.
//!
//! ```text
//! [identity#]model@kv_rank@object_group@chunk_hash[@cache_salt]    of LMCache
//! [identity#]engine[-pool]-digest#model@rank@part@name            of vLLM and SGLang
//! ```
//!
//! Ranks have eight hexadecimal digits, groups and parts as many as they need. Any other text is a key as well: it has no
//! namespace.

use std::borrow::Cow;
use std::fmt;

use blake2::Blake2b;
use blake2::digest::Digest as _;
use blake2::digest::consts::U16;

const SEPARATOR: char = '@';

/// Ends the name of an identity, and what an engine puts before a model.
const IDENTITY_MARK: char = '#';

/// The engine that keys belong to. In the store each of its keys begins with its name and `#`, so that no other engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity(String);

impl Identity {
    /// Longest name, in bytes.
    pub const MAX_BYTES: usize = 64;

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

    /// `key`, or its namespace, as it is stored.
    pub fn qualify(&self, key: &str) -> String {
        format!("{}{}{key}", self.0, IDENTITY_MARK)
    }

    /// The key that is stored as `stored`; none if it belongs to another engine.
    pub(crate) fn own<'key>(&self, stored: &'key str) -> Option<&'key str> {
        stored.strip_prefix(&*self.0)?.strip_prefix(IDENTITY_MARK)
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

/// The fields of a key of LMCache (`native_connector_l2_adapter.py` of LMCache 0.5.6).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of LMCache's ObjectKey")]
pub struct ObjectKey<'key> {
    pub model_name: &'key str,
    pub kv_rank: u64,
    pub object_group_id: u64,
    pub chunk_hash: Cow<'key, [u8]>,
    /// Empty if there is none.
    pub cache_salt: &'key str,
}

impl<'key> ObjectKey<'key> {
    /// The fields of `key`; none if it is of another form, or written in another way.
    pub fn parse(key: &'key str) -> Option<Self> {
        let fields: Vec<&str> = key.split(SEPARATOR).collect();
        let (model_name, rank, group, hash, cache_salt) = match fields[..] {
            [model, rank, group, hash] => (model, rank, group, hash, ""),
            [model, rank, group, hash, salt] => (model, rank, group, hash, salt),
            _ => return None,
        };
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (kv_rank, object_group_id) = (number(rank)?, number(group)?);
        let chunk_hash = bytes_of(hash)?.into();
        let parsed = Self { model_name, kv_rank, object_group_id, chunk_hash, cache_salt };
        // One that is written in another way is another key.
        (parsed.to_string() == key).then_some(parsed)
    }

    /// The hash of the chunk in hexadecimal digits.
    pub fn hash_text(&self) -> String {
        hex_of(&self.chunk_hash)
    }
}

impl fmt::Display for ObjectKey<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model_name, kv_rank, object_group_id, chunk_hash, cache_salt } = self;
        write!(
            formatter,
            "{model_name}{SEPARATOR}{kv_rank:08x}{SEPARATOR}{object_group_id:x}{SEPARATOR}{}",
            hex_of(chunk_hash)
        )?;
        match *cache_salt {
            "" => Ok(()),
            salt => write!(formatter, "{SEPARATOR}{salt}"),
        }
    }
}

/// The key of one part of what an engine calls `name`. `prefix` is a namespace and a rank.
pub fn part_key(prefix: &str, part: usize, name: &str) -> String {
    format!("{prefix}{SEPARATOR}{part:x}{SEPARATOR}{name}")
}

/// What the keys of a namespace and a rank begin with.
pub fn rank_prefix(namespace: &str, rank: u64) -> String {
    format!("{namespace}{SEPARATOR}{rank:08x}")
}

/// The namespace of what an engine stores: the digest of its layout, and the model. An engine with several pools puts the name of the pool
/// behind its own, as `sglang-mamba`: a suffix of the model could be part of another model's name.
pub fn engine_namespace(engine: &str, digest: &str, model: &str) -> String {
    format!("{}-{digest}{IDENTITY_MARK}{}", as_field(engine), as_field(model))
}

/// `text` without what separates the fields of a namespace.
fn as_field(text: &str) -> String {
    text.replace([SEPARATOR, IDENTITY_MARK], "_")
}

/// The salt of a namespace, by its name.
pub fn salt_of(namespace: &str) -> &str {
    Namespace::called(namespace).salt
}

/// Whether a namespace is of a model, whatever its identity, its salt, or the engine with its pool and digest.
pub fn is_of_model(namespace: &str, model: &str) -> bool {
    let own = Namespace::called(namespace).model;
    let own = own.rsplit_once(IDENTITY_MARK).map_or(own, |(_, own)| own);
    own == model || own == as_field(model)
}

fn hex_of(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
    bytes.iter().flat_map(digits).map(char::from).collect()
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let (pairs, []) = hex.as_bytes().as_chunks() else { return None };
    pairs.iter().map(|[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Whether a rank is followed by a chunk hash, as before LMCache 0.4.7. A group has fewer digits than any hash.
fn is_old(rank: &str, third: &str) -> bool {
    let is_hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    rank.len() >= 8 && third.len() >= 8 && is_hexadecimal(rank) && is_hexadecimal(third)
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
    fn a_model_has_namespaces_of_all_engines() {
        let of = |namespace| is_of_model(namespace, "meta/llama");
        for own in ["meta/llama", "meta/llama@salt", "fp8#meta/llama", "fp8#vllm-1-2#meta/llama"] {
            assert!(of(own), "{own}");
        }
        assert!(of("sglang-mamba-1#meta/llama") && of("fp8#sglang-1#meta/llama@salt"));
        for other in ["", "meta/llama.mamba", "vllm-1-2#meta/llama.mamba", "meta/llama3", "meta"] {
            assert!(!of(other), "{other}");
        }
        assert!(is_of_model("vllm-1-2#a_b", "a@b"));
    }

    #[test]
    fn a_model_has_no_namespaces_of_longer_or_shorter_names() {
        let names = ["Qwen/Qwen2", "Qwen/Qwen2.5-7B", "Qwen/Qwen2.mamba", "team#Qwen/Qwen2"];
        for (own, other) in names.iter().flat_map(|own| names.map(|other| (*own, other))) {
            for engine in ["vllm", "sglang", "sglang-mamba"] {
                let namespace = engine_namespace(engine, "0a1b", own);
                assert_eq!(is_of_model(&namespace, other), own == other, "{namespace}, {other}");
            }
        }
        assert!(!is_of_model("sglang-abc#Qwen/Qwen2.5-7B", "Qwen/Qwen2"));
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
    fn object_keys_are_written_as_lmcache_writes_them_and_read_back() {
        for (text, salt) in [("meta/llama@0000002a@1f@00abff", ""), ("m@00000001@0@ab@t", "t")] {
            let key = ObjectKey::parse(text).unwrap();
            assert_eq!((key.to_string().as_str(), key.cache_salt), (text, salt));
        }
        let other = [
            "m@1@0@ab",
            "m@00000001@0@AB",
            "m@00000001@0@abc",
            "m@00000001@00@ab",
            "m@0@0",
            "plain",
        ];
        assert!(other.into_iter().all(|text| ObjectKey::parse(text).is_none()));
    }

    #[test]
    fn keys_of_engines_are_in_their_namespace() {
        let namespace = engine_namespace("vllm", "0a1b", "meta/llama@v2");
        assert_eq!(namespace, "vllm-0a1b#meta/llama_v2");
        let key = part_key(&rank_prefix(&namespace, 3), 10, "cd");
        assert_eq!(key, "vllm-0a1b#meta/llama_v2@00000003@a@cd");
        assert_eq!(Namespace::of(&key).name(), namespace);
        assert_eq!((salt_of("m@tenant"), salt_of("m")), ("tenant", ""));
    }
}
