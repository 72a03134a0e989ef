//! The name that was probably meant by one that does not exist.

/// Longer ones are no misspellings.
const MAX_BYTES: usize = 64;

/// The one of `names` that `given` is a misspelling of, if any: a third of its letters may differ, and their case.
pub(super) fn nearest<'name>(
    given: &str,
    names: impl IntoIterator<Item = &'name str>,
) -> Option<&'name str> {
    if given.len() > MAX_BYTES {
        return None;
    }
    let given = given.to_lowercase();
    let candidates = names.into_iter().map(|name| (edits(&given, name), name));
    let near = candidates.filter(|(edits, name)| *edits <= (name.len() / 3).max(1));
    near.min_by_key(|(edits, _)| *edits).map(|(_, name)| name)
}

/// How many letters have to be inserted, removed, replaced or swapped with their neighbour to make one of the other (the
/// optimal string alignment distance).
fn edits(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut two_above = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (row, letter) in left.iter().enumerate() {
        let mut here = vec![row + 1];
        for (column, other) in right.iter().enumerate() {
            let replaced = above[column] + usize::from(letter != other);
            let least = replaced.min(above[column + 1] + 1).min(here[column] + 1);
            let is_swap =
                row > 0 && column > 0 && *letter == right[column - 1] && left[row - 1] == *other;
            here.push(if is_swap { least.min(two_above[column - 1] + 1) } else { least });
        }
        two_above = std::mem::replace(&mut above, here);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        let cases = [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("depht", "depth", 1),
            ("é", "e", 1),
        ];
        for (left, right, count) in cases {
            assert_eq!((edits(left, right), edits(right, left)), (count, count), "{left} {right}");
        }
    }

    #[test]
    fn only_a_misspelling_has_a_nearest_name() {
        let names = ["path", "capacity", "eviction", "queue_depth", "lru", "lfu"];
        for (given, meant) in [
            ("Path", "path"),
            ("capcity", "capacity"),
            ("evicton", "eviction"),
            ("queue_depht", "queue_depth"),
            ("lruu", "lru"),
            ("LFU", "lfu"),
        ] {
            assert_eq!(nearest(given, names), Some(meant));
        }
        for given in ["", "x", "random", "l1_memory_desc", &"path".repeat(100)] {
            assert_eq!(nearest(given, names), None, "{given}");
        }
    }
}
