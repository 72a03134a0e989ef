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

    pub(crate) fn segments_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        self.segments.iter_mut().map(Vec::as_mut_slice)
    }
}

impl<T: Copy, const SEGMENT: usize> SegmentedVec<T, SEGMENT> {
    /// `count` times the same.
    pub(crate) fn filled(element: T, count: usize) -> Self {
        let segment_at = |at: usize| vec![element; SEGMENT.min(count - at)];
        Self { segments: (0..count).step_by(SEGMENT).map(segment_at).collect() }
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
        for filled in [0, 1, 3, 4, 5, 8, 9] {
            let mut vector = SegmentedVec::<usize, 4>::filled(7, filled);
            let places: Vec<*const usize> = (0..filled).map(|at| &raw const vector[at]).collect();
            let numbers: Vec<usize> = (0..20).map(|at| vector.push(100 + at)).collect();
            assert_eq!(numbers, (filled..filled + 20).collect::<Vec<_>>());
            assert_eq!(vector.len(), filled + 20);
            assert!((0..filled).all(|at| vector[at] == 7));
            assert!((0..20).all(|at| vector[filled + at] == 100 + at));
            // What is not full yet may grow once.
            assert!((0..filled / 4 * 4).all(|at| places[at] == &raw const vector[at]));
            vector[filled] = 5;
            assert_eq!(vector.segments_mut().flatten().filter(|one| **one == 5).count(), 1);
        }
    }
}
