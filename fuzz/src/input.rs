//! Choices out of the bytes of an input. Behind its end all are 0, so that any input does something.

/// Numbers at which something changes in the format.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    3,
    0xff,
    4095,
    4096,
    4097,
    0xffff,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 31) + 1,
    u32::MAX as u64 - 1,
    u32::MAX as u64,
    1 << 32,
    (1 << 48) - 1,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

pub(crate) struct Input<'data>(&'data [u8]);

impl<'data> Input<'data> {
    pub(crate) fn new(data: &'data [u8]) -> Self {
        Self(data)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Up to so many bytes.
    pub(crate) fn take(&mut self, length: usize) -> &'data [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn number<const BYTES: usize>(&mut self) -> u64 {
        self.take(BYTES).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.number::<2>() as usize % end
    }

    pub(crate) fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.number::<1>() as usize % all.len()]
    }

    pub(crate) fn is_so(&mut self) -> bool {
        self.choose(&[false, true])
    }

    /// Any number, and often one at an edge.
    pub(crate) fn value(&mut self) -> u64 {
        match self.number::<1>() as usize {
            edge if edge < EDGES.len() => EDGES[edge],
            small if small < 128 => self.number::<2>(),
            _ => self.number::<8>(),
        }
    }

    pub(crate) fn text(&mut self, most: usize) -> String {
        let length = self.below(most + 1);
        String::from_utf8_lossy(self.take(length)).into_owned()
    }
}
