//! Which write stream of the drive a chunk goes to, so that the drive keeps apart what goes at different times.
//!
//! A stream is a reclaim unit handle of an NVMe drive with FDP (flexible data placement). The first one is also that of writes without
//! a stream: the index and the superblocks, which the kernel writes from its page cache. Chunks have those behind it.

use crate::base::sync::RwLock;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::config::{Config, WriteStreams};
use crate::index::Index;
use crate::key::Digest;
use crate::stats::{Counter, StreamUse};

/// Of a write that goes to no stream.
const NONE: u8 = 0;
/// First stream of chunks.
const FIRST: u8 = 2;
/// Fewest streams of a drive with which chunks are kept apart: that of the index, and two.
const FEWEST: u8 = 3;
/// Sizes of namespaces are compared again whenever this part of the capacity was written.
const COMPARED_EVERY: u64 = 64;

/// The streams of one path, and what was written to each.
pub(crate) struct StreamPlacement {
    rule: Rule,
    /// Of each stream of chunks, with what it is for.
    written_bytes: Vec<(&'static str, Counter)>,
    is_off: AtomicBool,
}

enum Rule {
    Off,
    Lifetime,
    Namespace(NamespaceStreams),
}

impl StreamPlacement {
    /// As the options say, on a drive with so many streams; `None` if the path has no drive of its own, or the kernel does not tell.
    /// Where the options cannot be met, it says so once; of the default it does so only for a drive that has some.
    pub(crate) fn new(config: &Config, drive_streams: Option<u8>) -> Self {
        let reason = match drive_streams {
            _ if config.write_streams == WriteStreams::Off => None,
            None => Some("file systems ignore write streams, and so does Linux before 6.16".into()),
            Some(0) => Some("its drive has no write streams (NVMe FDP)".into()),
            Some(count @ ..FEWEST) => {
                Some(format!("its drive has {count} write streams, and {FEWEST} are needed"))
            }
            Some(_) => None,
        };
        if let Some(reason) = &reason
            && (drive_streams.is_some_and(|count| count > 0)
                || config.write_streams != WriteStreams::Lifetime)
        {
            tell_off(config, reason);
        }
        let for_chunks = drive_streams.unwrap_or(NONE).saturating_sub(FIRST - 1);
        let (rule, contents) = match config.write_streams {
            WriteStreams::Off => (Rule::Off, Vec::new()),
            _ if reason.is_some() => (Rule::Off, Vec::new()),
            WriteStreams::Lifetime => (Rule::Lifetime, vec!["first_time", "returned"]),
            WriteStreams::Namespace => {
                let streams = NamespaceStreams::new(for_chunks, config.capacity_bytes());
                let contents = streams.contents();
                (Rule::Namespace(streams), contents)
            }
        };
        let written_bytes = contents.into_iter().map(|one| (one, Counter::default())).collect();
        Self { rule, written_bytes, is_off: AtomicBool::new(false) }
    }

    /// The stream of a chunk that is to be written, by its digest, fingerprint of the namespace and length; 0 for none.
    pub(super) fn of<S>(
        &self,
        (digest, namespace, length_bytes): (Digest, u64, u64),
        index: &Index<S>,
    ) -> u8 {
        if self.is_off.load(Ordering::Relaxed) {
            return NONE;
        }
        match &self.rule {
            Rule::Off => NONE,
            Rule::Lifetime => FIRST + u8::from(index.is_remembered(digest)),
            Rule::Namespace(streams) => {
                if streams.is_comparison_due(length_bytes) {
                    let alone = streams.alone.read().clone();
                    let largest = index.largest_namespaces(alone.len(), |namespace, bytes| {
                        if alone.contains(&Some(namespace)) { 2 * bytes } else { bytes }
                    });
                    *streams.alone.write() = seated(alone, &largest);
                }
                FIRST + streams.number_of(namespace)
            }
        }
    }

    /// A chunk was written to a stream.
    pub(super) fn note_written(&self, stream: u8, bytes: u64) {
        let number = usize::from(stream.wrapping_sub(FIRST));
        if let Some((_, counter)) = self.written_bytes.get(number) {
            counter.add(bytes);
        }
    }

    /// An engine moves bytes that tells the drive of no streams.
    pub(crate) fn switch_off(&self, config: &Config) {
        if !matches!(self.rule, Rule::Off) && !self.is_off.swap(true, Ordering::Relaxed) {
            tell_off(config, "only io_uring tells the drive of write streams");
        }
    }

    /// What went to each stream of chunks; empty where there are none in use.
    pub(crate) fn uses(&self) -> Vec<StreamUse> {
        if self.is_off.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let of = |(stream, (content, counter)): (u8, &(&'static str, Counter))| StreamUse {
            stream,
            content,
            written_bytes: counter.get(),
        };
        (FIRST..=u8::MAX).zip(&self.written_bytes).map(of).collect()
    }
}

fn tell_off(config: &Config, reason: &str) {
    let (path, option) = (config.path().display(), config.write_streams.name());
    // The default is nobody's wish.
    let is_default = config.write_streams == WriteStreams::Lifetime;
    let level = if is_default { log::Level::Info } else { log::Level::Warn };
    log::log!(level, "{path}: write_streams = '{option}' has no effect: {reason}");
}

/// The larger half of the streams has one namespace each, and the others share the rest by hash.
struct NamespaceStreams {
    /// Fingerprint of the namespace that has the stream for itself.
    alone: RwLock<Vec<Option<u64>>>,
    shared: u8,
    placed_bytes: AtomicU64,
    compared_every_bytes: u64,
}

impl NamespaceStreams {
    fn new(streams: u8, capacity_bytes: u64) -> Self {
        let shared = streams / 2;
        Self {
            alone: RwLock::new(vec![None; usize::from(streams - shared)]),
            shared,
            placed_bytes: AtomicU64::new(0),
            compared_every_bytes: (capacity_bytes / COMPARED_EVERY).max(1),
        }
    }

    fn contents(&self) -> Vec<&'static str> {
        let alone = self.alone.read().iter().map(|_| "one_namespace").collect::<Vec<_>>();
        [alone, vec!["other_namespaces"; usize::from(self.shared)]].concat()
    }

    /// Whether so much was placed, these bytes included, that sizes are to be compared; at first as well.
    fn is_comparison_due(&self, bytes: u64) -> bool {
        let before = self.placed_bytes.fetch_add(bytes, Ordering::Relaxed);
        let every = self.compared_every_bytes;
        before == 0 || before / every != (before + bytes) / every
    }

    /// Number of the stream of a namespace, from 0 on.
    fn number_of(&self, namespace: u64) -> u8 {
        let alone = self.alone.read();
        let own = alone.iter().position(|one| *one == Some(namespace));
        own.unwrap_or(alone.len() + (namespace % u64::from(self.shared)) as usize) as u8
    }
}

/// Who has a stream alone from now on: the `largest`. Who had one and is among them keeps it.
fn seated(mut alone: Vec<Option<u64>>, largest: &[u64]) -> Vec<Option<u64>> {
    for seat in &mut alone {
        *seat = seat.filter(|namespace| largest.contains(namespace));
    }
    for namespace in largest {
        if !alone.contains(&Some(*namespace))
            && let Some(seat) = alone.iter_mut().find(|seat| seat.is_none())
        {
            *seat = Some(*namespace);
        }
    }
    alone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(option: WriteStreams, drive_streams: Option<u8>) -> StreamPlacement {
        let config = Config { write_streams: option, ..Config::new("/store", 64 << 20).unwrap() };
        StreamPlacement::new(&config, drive_streams)
    }

    fn streams(placement: &StreamPlacement) -> Vec<(u8, &'static str, u64)> {
        let uses = placement.uses().into_iter();
        uses.map(|one| (one.stream, one.content, one.written_bytes)).collect()
    }

    #[test]
    fn they_are_off_where_the_drive_or_the_engine_has_too_few() {
        for option in [WriteStreams::Lifetime, WriteStreams::Namespace] {
            for drive_streams in [None, Some(0), Some(1), Some(2)] {
                assert!(placement(option, drive_streams).uses().is_empty(), "{drive_streams:?}");
            }
            let placement = placement(option, Some(3));
            assert_eq!(placement.uses().len(), 2, "none of them is that of the index");
            placement.switch_off(&Config::new("/store", 64 << 20).unwrap());
            assert!(placement.uses().is_empty());
        }
        assert!(placement(WriteStreams::Off, Some(8)).uses().is_empty());
    }

    #[test]
    fn bytes_are_counted_by_stream() {
        let placement = placement(WriteStreams::Lifetime, Some(8));
        [(2, 5), (3, 7), (2, 1), (NONE, 100)]
            .into_iter()
            .for_each(|(stream, bytes)| placement.note_written(stream, bytes));
        assert_eq!(streams(&placement), [(2, "first_time", 6), (3, "returned", 7)]);
    }

    #[test]
    fn the_larger_half_is_for_one_namespace_each_and_the_rest_share_by_hash() {
        for (drive, alone, shared) in [(3, 1, 1), (4, 2, 1), (8, 4, 3), (255, 127, 127)] {
            let placement = placement(WriteStreams::Namespace, Some(drive));
            let Rule::Namespace(streams) = &placement.rule else { panic!("it is off") };
            assert_eq!((streams.alone.read().len(), streams.shared), (alone, shared));
            assert_eq!(placement.uses().last().map(|one| one.stream), Some(drive));
            *streams.alone.write() = seated(vec![None; alone], &[77]);
            assert_eq!(streams.number_of(77), 0);
            let others = (0..50).map(|one| usize::from(streams.number_of(one)));
            assert!(
                others.into_iter().all(|one| (alone..alone + usize::from(shared)).contains(&one))
            );
        }
    }

    #[test]
    fn who_stays_among_the_largest_keeps_its_stream() {
        let first = seated(vec![None; 3], &[1, 2, 3]);
        assert_eq!(first, [Some(1), Some(2), Some(3)]);
        assert_eq!(seated(first.clone(), &[3, 4, 1]), [Some(1), Some(4), Some(3)]);
        assert_eq!(seated(first, &[2]), [None, Some(2), None]);
    }

    #[test]
    fn sizes_are_compared_at_first_and_after_each_64th_of_the_capacity() {
        let streams = NamespaceStreams::new(3, 64 << 20);
        let due = |bytes| streams.is_comparison_due(bytes);
        assert!(due(1 << 19));
        assert!(!due((1 << 19) - 1) && due(1) && !due(1) && due(9 << 20));
    }
}
