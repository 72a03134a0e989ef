//! A vector whose elements stay where they are.

use std::ops::{Index, IndexMut};

/// A vector in segments of so many elements: adding one to many neither copies them nor leaves a gap of their size behind.
pub(crate) struct SegmentedVec<T, const SEGMENT: usize> {
    segments: Vec<Vec<T>>,
}

impl<T, const SEGMENT: usize> Default for SegmentedVec<T, SEGMENT> {
    fn default() -> Self {
        Self { segments: Vec::new() }
    }
}

impl<T, const SEGMENT: usize> SegmentedVec<T, SEGMENT> {
    /// Adds an element, and returns its number.
    pub(crate) fn push(&mut self, element: T) -> usize {
        if self.segments.last().is_none_or(|segment| segment.len() == SEGMENT) {
            // The first one grows with its elements: small stores have few.
            let first = self.segments.is_empty();
            self.segments.push(if first { Vec::new() } else { Vec::with_capacity(SEGMENT) });
        }
        let number = self.len();
        self.segments[number / SEGMENT].push(element);
        number
    }

    pub(crate) fn len(&self) -> usize {
        let full = self.segments.len().saturating_sub(1) * SEGMENT;
        full + self.segments.last().map_or(0, Vec::len)
    }
}

impl<T, const SEGMENT: usize> Index<usize> for SegmentedVec<T, SEGMENT> {
    type Output = T;

    fn index(&self, number: usize) -> &T {
        &self.segments[number / SEGMENT][number % SEGMENT]
    }
}

impl<T, const SEGMENT: usize> IndexMut<usize> for SegmentedVec<T, SEGMENT> {
    fn index_mut(&mut self, number: usize) -> &mut T {
        &mut self.segments[number / SEGMENT][number % SEGMENT]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_numbers_and_stay_where_they_are() {
        let mut vector = SegmentedVec::<usize, 4>::default();
        let numbers: Vec<usize> = (0..9).map(|at| vector.push(100 + at)).collect();
        assert_eq!(numbers, (0..9).collect::<Vec<_>>());
        let places: Vec<*const usize> = (0..8).map(|at| &raw const vector[at]).collect();
        (9..20).for_each(|at| _ = vector.push(100 + at));
        assert!((0..8).all(|at| places[at] == &raw const vector[at]));
        vector[5] = 5;
        assert!((0..20).all(|at| vector[at] == if at == 5 { 5 } else { 100 + at }));
        assert_eq!(vector.len(), 20);
    }
}
