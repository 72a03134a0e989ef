//! Which entry and which record a digest leads to: a hash table whose buckets are one cache line each.
//!
//! An element lies in the bucket that its tag chooses or, where that is full, in the next one with room. Each bucket
//! counts the elements that passed it by for want of room, so that a search ends at the first that nobody passed, and
//! removal neither moves anything nor leaves a tombstone.
//!
//! Tags may be equal: the caller says of each candidate whether it is the one.

use crate::base::system::prefetch_line;

/// Elements of a bucket, as many as a cache line takes.
const WIDTH: usize = 5;
/// Elements for each bucket, on average, above which the table grows.
const MAX_PER_BUCKET: usize = 4;
const MIN_BUCKETS: usize = 4;
/// Buckets passed in a search that are too many.
const CROWD: usize = 32;
/// `entries` of a cell that is empty.
const NONE: u32 = u32::MAX;

#[derive(Default)]
pub(crate) struct Lookup {
    buckets: Vec<Bucket>,
    len: usize,
}

/// Where a tag leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    /// Number of the entry in its shard.
    pub(crate) entry: u32,
    /// Slot of its record in the index file.
    pub(crate) record: u32,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    /// Elements that would lie here or before, but lie behind.
    passed: u32,
    tags: [u32; WIDTH],
    entries: [u32; WIDTH],
    records: [u32; WIDTH],
}

const _: () = assert!(size_of::<Bucket>() == 64);

impl Bucket {
    const EMPTY: Self =
        Self { passed: 0, tags: [0; WIDTH], entries: [NONE; WIDTH], records: [0; WIDTH] };

    fn at(&self, cell: usize) -> Located {
        Located { entry: self.entries[cell], record: self.records[cell] }
    }

    fn used(&self) -> impl Iterator<Item = usize> + '_ {
        (0..WIDTH).filter(|cell| self.entries[*cell] != NONE)
    }

    fn tagged(&self, tag: u32) -> impl Iterator<Item = usize> + '_ {
        (0..WIDTH).filter(move |cell| self.tags[*cell] == tag && self.entries[*cell] != NONE)
    }
}

impl Lookup {
    /// The first element with this tag that `is_it` accepts.
    pub(crate) fn find(&self, tag: u32, is_it: impl FnMut(Located) -> bool) -> Option<Located> {
        let (number, cell) = self.search(tag, is_it)?;
        Some(self.buckets[number].at(cell))
    }

    /// The bucket and the cell of that element.
    fn search(&self, tag: u32, mut is_it: impl FnMut(Located) -> bool) -> Option<(usize, usize)> {
        for number in self.path(tag) {
            let bucket = &self.buckets[number];
            let cell = bucket.tagged(tag).find(|cell| is_it(bucket.at(*cell)));
            if cell.is_some() || bucket.passed == 0 {
                return cell.map(|cell| (number, cell));
            }
        }
        None
    }

    /// Whether a search for `tag` takes so long as never happens with tags that are left to chance.
    pub(crate) fn is_crowded(&self, tag: u32) -> bool {
        self.path(tag).take_while(|number| self.buckets[*number].passed > 0).nth(CROWD).is_some()
    }

    pub(crate) fn insert(&mut self, tag: u32, found: Located) {
        debug_assert!(found.entry != NONE, "no slab has so many entries");
        self.reserve(1);
        self.put(tag, found);
        self.len += 1;
    }

    /// Removes the element of this entry. Returns the slot of its record.
    pub(crate) fn remove(&mut self, tag: u32, entry: u32) -> Option<u32> {
        let (number, cell) = self.search(tag, |found| found.entry == entry)?;
        for passed in self.path(tag).take_while(|passed| *passed != number) {
            self.buckets[passed].passed -= 1;
        }
        let bucket = &mut self.buckets[number];
        bucket.entries[cell] = NONE;
        self.len -= 1;
        Some(bucket.records[cell])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Located> + '_ {
        self.buckets.iter().flat_map(|bucket| bucket.used().map(|cell| bucket.at(cell)))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn reserve(&mut self, additional: usize) {
        let needed = (self.len + additional).div_ceil(MAX_PER_BUCKET);
        if needed > self.buckets.len() {
            // By half: whoever waits for the shard waits for this.
            self.resize(needed.max(self.buckets.len() * 3 / 2).max(MIN_BUCKETS));
        }
    }

    /// Brings the bucket in which the search for `tag` begins into the processor's cache, without waiting for it.
    pub(crate) fn prefetch(&self, tag: u32) {
        prefetch_line(self.buckets.as_ptr().wrapping_add(self.home(tag)).cast());
    }

    fn resize(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::EMPTY; buckets]);
        for bucket in &old {
            for cell in bucket.used() {
                self.put(bucket.tags[cell], bucket.at(cell));
            }
        }
    }

    /// Puts an element into the first empty cell; there is one, since buckets are not full on average.
    fn put(&mut self, tag: u32, found: Located) {
        for number in self.path(tag) {
            let bucket = &mut self.buckets[number];
            if let Some(cell) = bucket.entries.iter().position(|entry| *entry == NONE) {
                bucket.tags[cell] = tag;
                bucket.entries[cell] = found.entry;
                bucket.records[cell] = found.record;
                return;
            }
            bucket.passed += 1;
        }
    }

    /// All buckets once, in the order of a search.
    fn path(&self, tag: u32) -> impl Iterator<Item = usize> + use<> {
        let (home, buckets) = (self.home(tag), self.buckets.len());
        (home..buckets).chain(0..home)
    }

    /// Order of tags is order of buckets, so growing writes them one after the other.
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.buckets.len() as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Few distinct tags, at both ends of the table and equal ones: full buckets, long ways, ways around the end.
    fn tag() -> impl Strategy<Value = u32> {
        prop_oneof![Just(0), Just(u32::MAX), u32::MAX - 3..=u32::MAX, 0_u32..4, any::<u32>()]
    }

    fn assert_same(lookup: &Lookup, expected: &HashMap<u32, (u32, u32)>) {
        assert_eq!(lookup.len, expected.len());
        for (entry, (tag, record)) in expected {
            let found = lookup.find(*tag, |found| found.entry == *entry);
            assert_eq!(found, Some(Located { entry: *entry, record: *record }));
        }
        let held = lookup.buckets.iter().flat_map(|bucket| bucket.entries);
        assert_eq!(held.filter(|entry| *entry != NONE).count(), expected.len());
    }

    proptest! {
        #[test]
        fn finds_what_a_hash_map_finds(
            steps in prop::collection::vec((tag(), any::<prop::sample::Index>(), 0_u8..8), 1..if cfg!(miri) { 60 } else { 400 })
        ) {
            let mut lookup = Lookup::default();
            // By entry, as tags may be equal.
            let mut expected: HashMap<u32, (u32, u32)> = HashMap::new();
            for (number, (tag, which, action)) in (0_u32..).zip(steps) {
                let mut entries: Vec<u32> = expected.keys().copied().collect();
                entries.sort_unstable();
                match action {
                    0..=4 => {
                        lookup.insert(tag, Located { entry: number, record: !number });
                        expected.insert(number, (tag, !number));
                    }
                    _ if entries.is_empty() => prop_assert_eq!(lookup.find(tag, |_| true), None),
                    _ => {
                        let entry = *which.get(&entries);
                        let (tag, record) = expected[&entry];
                        prop_assert_eq!(lookup.remove(tag, entry), Some(record));
                        prop_assert_eq!(lookup.remove(tag, entry), None);
                        expected.remove(&entry);
                    }
                }
                let visited = |tag| {
                    let mut count = 0;
                    lookup.find(tag, |_| { count += 1; false });
                    count
                };
                let tagged = expected.values().filter(|(other, _)| *other == tag).count();
                prop_assert_eq!(visited(tag), tagged, "each with its tag, and once");
                assert_same(&lookup, &expected);
            }
            for (entry, (tag, record)) in expected.drain() {
                prop_assert_eq!(lookup.remove(tag, entry), Some(record));
            }
            let untouched = lookup.buckets.iter().all(|bucket| bucket.passed == 0);
            prop_assert!(untouched, "nothing passed what is empty");
        }
    }

    #[test]
    fn it_grows_by_half_and_few_are_passed_by() {
        let mut lookup = Lookup::default();
        let mut sizes = Vec::new();
        for entry in 0..10_000_u32 {
            // Spread over all tags.
            lookup.insert(entry.wrapping_mul(0x9e37_79b1), Located { entry, record: entry });
            let count = entry as usize + 1;
            assert!(count <= MAX_PER_BUCKET * lookup.buckets.len(), "{count} in all");
            assert!(count != 4 * MIN_BUCKETS || lookup.buckets.len() == MIN_BUCKETS);
            if sizes.last() != Some(&lookup.buckets.len()) {
                sizes.push(lookup.buckets.len());
            }
        }
        assert_eq!(sizes[..5], [4, 6, 9, 13, 19]);
        assert!(sizes.windows(2).all(|pair| pair[1] == pair[0] * 3 / 2), "{sizes:?}");
        let passed: u32 = lookup.buckets.iter().map(|bucket| bucket.passed).sum();
        assert!(passed < 1000, "{passed} lie behind their bucket");
        // In the order of tags, from one end to the other.
        let home = |part: u64| lookup.home((part << 28).saturating_sub(1) as u32);
        let homes: Vec<usize> = (0..=16).map(home).collect();
        assert!(homes.is_sorted() && homes[0] == 0, "{homes:?}");
        assert_eq!(homes[16], lookup.buckets.len() - 1);
    }
}
