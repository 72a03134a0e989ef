//! Options that are one of a few names.

macro_rules! named {
    ($(#[$about:meta])* $kind:ident { $($(#[$value_about:meta])* $value:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind { $($(#[$value_about])* $value),+ }

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
        /// CRC-64/NVME, computed while writing, compared on every GET.
        Crc64Nvme = "crc64nvme",
        /// None: what the disk returns is trusted.
        Off = "off",
    }
}

impl Checksum {
    /// Whether new chunks get one.
    pub(crate) fn is_on(self) -> bool {
        self != Self::Off
    }
}

named! {
    /// How the bytes are moved.
    EngineChoice {
        /// io_uring, or threads where it cannot be had.
        Auto = "auto",
        /// io_uring; opening fails where it cannot be had.
        IoUring = "io_uring",
        /// Threads.
        Posix = "posix",
    }
}

named! {
    /// What a completed SET withstands.
    Durability {
        /// The death of the process.
        BestEffort = "best_effort",
        /// Power loss as well: data and record are synced before the completion.
        Persistent = "persistent",
    }
}

named! {
    /// How chunks lie on disk.
    Layout {
        /// As extents of preallocated data files.
        Extents = "extents",
        /// Each in a file of its own.
        Files = "files",
    }
}

named! {
    /// Which SETs store something.
    Admission {
        /// All of them.
        Always = "always",
        /// Those of keys that were to be stored before.
        SecondUse = "second_use",
        /// With adaptive eviction, of new keys as large a share of requests as has shown to be worth it.
        Adaptive = "adaptive",
    }
}

named! {
    /// When a block device is told which of its bytes are not needed any more.
    Discard {
        /// Never.
        Never = "never",
        /// When it is formatted, of all of it.
        Format = "format",
        /// When it is formatted, and of the extent of each chunk that goes.
        Free = "free",
    }
}

named! {
    /// Which chunks a drive with flexible data placement is told to keep apart.
    WriteStreams {
        /// None.
        Off = "off",
        /// Those that are stored for the first time from those that came back.
        Lifetime = "lifetime",
        /// Those of the largest namespaces from those of others.
        Namespace = "namespace",
    }
}

named! {
    /// Which order chunks are evicted in.
    Eviction {
        /// By uses and age, where what a chunk without uses is worth is learnt from keys that return.
        Adaptive = "adaptive",
        /// The one not used for the longest time.
        Lru = "lru",
        /// The one used least often, where what was used long ago counts less and less.
        Lfu = "lfu",
        /// The one stored first.
        Fifo = "fifo",
        /// The one used last.
        Mru = "mru",
    }
}
