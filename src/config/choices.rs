//! Options that are one of a few names.

use crate::checksum::ChecksumKind;

macro_rules! named {
    ($(#[$about:meta])* $kind:ident { $($value:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[allow(missing_docs, reason = "`OPTIONS` says what each name means")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind { $($value),+ }

        impl $kind {
            /// All of them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// As options name it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$value => $name),+ }
            }
        }
    };
}

named! {
    /// How payloads are verified between SET and GET.
    Checksum {
        Crc64Nvme = "crc64nvme",
        Off = "off",
    }
}

impl Checksum {
    /// The checksum of new chunks.
    pub(crate) fn kind(self) -> Option<ChecksumKind> {
        (self == Self::Crc64Nvme).then_some(ChecksumKind::Crc64Nvme)
    }
}

named! {
    /// How the bytes are moved.
    EngineChoice {
        Auto = "auto",
        IoUring = "io_uring",
        Posix = "posix",
    }
}

named! {
    /// What a completed SET withstands.
    Durability {
        BestEffort = "best_effort",
        Persistent = "persistent",
    }
}

named! {
    /// How chunks lie on disk.
    Layout {
        Extents = "extents",
        Files = "files",
    }
}

named! {
    /// Which SETs store something.
    Admission {
        Always = "always",
        SecondUse = "second_use",
    }
}

named! {
    /// When a block device is told which of its bytes are not needed any more.
    Discard {
        Never = "never",
        Format = "format",
        Free = "free",
    }
}

named! {
    /// Which order chunks are evicted in.
    Eviction {
        Lru = "lru",
        Lfu = "lfu",
        Fifo = "fifo",
        Mru = "mru",
        S3Fifo = "s3fifo",
    }
}
