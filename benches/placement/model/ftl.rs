//! A small flash translation layer: superblocks that are written from front to back and erased as a whole, one open for each handle,
//! greedy garbage collection, and trims that are obeyed.

/// Bytes that are mapped as one, as in most drives.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Superblocks that the logical bytes of the drive fill: drives of some TB have reclaim units of some GB.
const SUPERBLOCKS: u64 = 768;
/// Erased superblocks that are kept, for garbage collection itself.
const RESERVE: usize = 2;
const NONE: u32 = u32::MAX;

pub(crate) struct Ftl {
    /// Physical page of each logical one, and the other way round.
    physical: Vec<u32>,
    logical: Vec<u32>,
    /// Pages of each superblock that are mapped.
    valid: Vec<u32>,
    is_closed: Vec<bool>,
    erased: Vec<u32>,
    /// The next page of the superblock that is open for each handle, the last one for garbage collection.
    open: Vec<Option<u32>>,
    superblock_pages: u32,
    pub(crate) host_pages: u64,
    pub(crate) media_pages: u64,
}

impl Ftl {
    /// A drive of `logical_bytes`, with so much more flash, and so many handles.
    pub(crate) fn new(logical_bytes: u64, spare_share: f64, handles: u8) -> Self {
        let logical_pages = logical_bytes.div_ceil(PAGE_BYTES);
        let superblock_pages = logical_pages.div_ceil(SUPERBLOCKS);
        let superblocks = (SUPERBLOCKS as f64 * (1.0 + spare_share)) as usize;
        Self {
            physical: vec![NONE; logical_pages as usize],
            logical: vec![NONE; superblocks * superblock_pages as usize],
            valid: vec![0; superblocks],
            is_closed: vec![false; superblocks],
            erased: (0..superblocks as u32).rev().collect(),
            open: vec![None; usize::from(handles) + 1],
            superblock_pages: superblock_pages as u32,
            host_pages: 0,
            media_pages: 0,
        }
    }

    /// The host writes whole pages with a handle.
    pub(crate) fn write(&mut self, offset_bytes: u64, length_bytes: u64, handle: u8) {
        for page in pages(offset_bytes, length_bytes) {
            self.host_pages += 1;
            self.unmap(page);
            self.append(page, handle.into());
        }
        while self.erased.len() < RESERVE {
            self.collect();
        }
    }

    /// The host needs these pages no more.
    pub(crate) fn trim(&mut self, offset_bytes: u64, length_bytes: u64) {
        pages(offset_bytes, length_bytes).for_each(|page| self.unmap(page));
    }

    fn unmap(&mut self, page: u32) {
        let physical = std::mem::replace(&mut self.physical[page as usize], NONE);
        if physical != NONE {
            self.logical[physical as usize] = NONE;
            self.valid[(physical / self.superblock_pages) as usize] -= 1;
        }
    }

    fn append(&mut self, page: u32, open: usize) {
        let at = match self.open[open] {
            Some(at) => at,
            None => {
                if self.erased.len() < RESERVE && open + 1 < self.open.len() {
                    self.collect();
                }
                let superblock = self.erased.pop().expect("garbage collection frees in time");
                superblock * self.superblock_pages
            }
        };
        self.physical[page as usize] = at;
        self.logical[at as usize] = page;
        self.valid[(at / self.superblock_pages) as usize] += 1;
        self.media_pages += 1;
        let is_full = (at + 1).is_multiple_of(self.superblock_pages);
        self.open[open] = (!is_full).then_some(at + 1);
        if is_full {
            self.is_closed[(at / self.superblock_pages) as usize] = true;
        }
    }

    /// Moves what is valid in the superblock with the least of it, and erases it.
    fn collect(&mut self) {
        let closed = (0..self.valid.len()).filter(|number| self.is_closed[*number]);
        let victim = closed.min_by_key(|number| self.valid[*number]).expect("some are closed");
        let first = victim * self.superblock_pages as usize;
        for at in first..first + self.superblock_pages as usize {
            let page = self.logical[at];
            if page != NONE {
                self.unmap(page);
                self.append(page, self.open.len() - 1);
            }
        }
        self.is_closed[victim] = false;
        self.erased.push(victim as u32);
    }
}

fn pages(offset_bytes: u64, length_bytes: u64) -> impl Iterator<Item = u32> {
    (offset_bytes / PAGE_BYTES..(offset_bytes + length_bytes) / PAGE_BYTES).map(|page| page as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = SUPERBLOCKS * 64;

    fn amplification(spare_share: f64, handles: u8, write: impl FnMut(&mut Ftl)) -> f64 {
        let mut ftl = Ftl::new(PAGES * PAGE_BYTES, spare_share, handles);
        ftl.write(0, PAGES * PAGE_BYTES, 0);
        let mut write = write;
        write(&mut ftl);
        ftl.media_pages as f64 / ftl.host_pages as f64
    }

    /// Numbers that look random.
    fn random(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *seed >> 33
    }

    #[test]
    fn what_is_written_in_order_is_never_moved() {
        let in_order = |ftl: &mut Ftl| (0..9).for_each(|_| ftl.write(0, PAGES * PAGE_BYTES, 0));
        assert_eq!(amplification(0.07, 1, in_order), 1.0);
    }

    #[test]
    fn pages_at_random_are_moved_the_more_the_less_is_spare() {
        let at_random = |ftl: &mut Ftl| {
            let mut seed = 1;
            (0..20 * PAGES)
                .for_each(|_| ftl.write(random(&mut seed) % PAGES * PAGE_BYTES, PAGE_BYTES, 0));
        };
        let (little, much) = (amplification(0.07, 1, at_random), amplification(0.28, 1, at_random));
        // Greedy collection of uniform writes: about (1 + spare) / (2 x spare).
        assert!((5.0..9.0).contains(&little) && (1.8..2.6).contains(&much), "{little} {much}");
    }

    #[test]
    fn rings_of_two_speeds_cost_nothing_apart() {
        // A tenth of the drive is overwritten nine times as often as the rest.
        let (hot, cold) = (PAGES / 10, PAGES - PAGES / 10);
        let rings = |are_apart: bool| {
            move |ftl: &mut Ftl| {
                for number in 0..20 * PAGES {
                    let is_hot = number % 2 == 0;
                    let page = if is_hot { number / 2 % hot } else { hot + number / 2 % cold };
                    ftl.write(page * PAGE_BYTES, PAGE_BYTES, u8::from(is_hot && are_apart));
                }
            }
        };
        let (together, apart) =
            (amplification(0.07, 2, rings(false)), amplification(0.07, 2, rings(true)));
        assert!(apart < 1.1 && together > 1.3 * apart, "{together} {apart}");
    }

    #[test]
    fn a_trim_is_obeyed() {
        let trimmed = |ftl: &mut Ftl| {
            ftl.trim(0, PAGES / 2 * PAGE_BYTES);
            let mut seed = 1;
            let page = |seed: &mut u64| PAGES / 2 + random(seed) % (PAGES / 2);
            (0..20 * PAGES).for_each(|_| ftl.write(page(&mut seed) * PAGE_BYTES, PAGE_BYTES, 0));
        };
        assert!(amplification(0.07, 1, trimmed) < 1.5);
    }
}
