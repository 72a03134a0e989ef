//! What a chunk means beyond its key: a chunk of another variant, or of another epoch, is a miss.

use crate::common::{Client, MIB, Memory, config_of, key, new_paths, pattern};
use kvring::{ANY_VARIANT, Variant, list_chunks};

const LENGTH: usize = 5000;

fn set(client: &Client, variant: Variant, seed: u64) {
    let memory = Memory::patterned(LENGTH, 0, seed);
    let spans = [memory.buffer().of_variant(variant)];
    let batch = client.connector.submit_set(&[key(1)], &spans, Box::new(())).unwrap();
    assert!(client.wait(batch).ok);
}

/// The seed of the chunk that a load of this variant finds.
fn get(client: &Client, variant: Variant) -> Option<u64> {
    let memory = Memory::new(LENGTH, 0);
    let spans = [memory.buffer().of_variant(variant)];
    let batch = client.connector.submit_get(&[key(1)], &spans, Box::new(())).unwrap();
    if !client.wait(batch).results[0] {
        assert_eq!(memory.bytes(), [0; LENGTH], "a miss leaves the buffer as it was");
        return None;
    }
    (0..10).find(|seed| memory.bytes() == pattern(LENGTH, *seed))
}

fn exists(client: &Client, variant: Option<Variant>) -> bool {
    client.connector.exists_as(&[key(1)], &[variant]).unwrap()[0]
}

#[test]
fn a_chunk_of_another_variant_is_a_miss_and_is_replaced() {
    let (_root, paths) = new_paths(2);
    for paths in [&paths[..1], &paths[1..]] {
        let client = Client::with(config_of(paths, 64 * MIB));
        set(&client, 7, 1);
        assert_eq!([7, 8, 0].map(|variant| get(&client, variant)), [Some(1), None, None]);
        assert_eq!(
            [Some(7), Some(8), Some(0), None].map(|one| exists(&client, one)),
            [true, false, false, true]
        );
        assert!(!client.exists(&[key(1)])[0], "callers that name none get none that has one");
        assert_eq!(client.connector.prefix(&[key(1)]).unwrap(), 0);
        assert_eq!(client.counter("other_variant"), 6);
        // The same bytes mean something else: they are no copy of those that are stored.
        set(&client, 8, 1);
        assert_eq!((client.counter("set_stored"), client.counter("set_unchanged")), (2, 0));
        assert_eq!([7, 8].map(|variant| get(&client, variant)), [None, Some(1)]);
        set(&client, 8, 1);
        assert_eq!(client.counter("set_unchanged"), 1);
        client.assert_consistent();
    }
}

#[test]
fn variants_are_kept_across_restarts_and_told_by_listings() {
    let (_root, paths) = new_paths(1);
    set(&Client::with(config_of(&paths, 64 * MIB)), 77, 3);
    let client = Client::with(config_of(&paths, 64 * MIB));
    assert_eq!([0, 77].map(|variant| get(&client, variant)), [None, Some(3)]);
    client.assert_consistent();
    assert!(client.connector.close().clean);
    let listed: Vec<Variant> =
        list_chunks(&paths[0], None).unwrap().map(|chunk| chunk.unwrap().variant).collect();
    assert_eq!(listed, [77]);
}

#[test]
fn an_epoch_hides_what_others_stored() {
    let (_root, paths) = new_paths(1);
    let client = Client::with(config_of(&paths, 64 * MIB));
    set(&client, 7, 1);
    client.connector.set_epoch("step 1");
    assert!(get(&client, 7).is_none() && !exists(&client, Some(7)));
    client.connector.set_epoch("");
    assert_eq!(get(&client, 7), Some(1), "of the first epoch again");
    client.connector.set_epoch("step 1");
    set(&client, 7, 2);
    assert_eq!(get(&client, 7), Some(2));
    client.connector.set_epoch("step 2");
    assert!(get(&client, 7).is_none() && !exists(&client, Some(7)));
    assert!(exists(&client, None), "who asks for any gets any");
}

#[test]
fn a_chunk_for_all_is_found_in_its_own_epoch() {
    let (_root, paths) = new_paths(1);
    let client = Client::with(config_of(&paths, 64 * MIB));
    set(&client, ANY_VARIANT, 1);
    assert!([0, 7, 8].iter().all(|variant| get(&client, *variant) == Some(1)));
    assert!(client.exists(&[key(1)])[0]);
    client.connector.set_epoch("step 1");
    assert!(get(&client, 7).is_none() && !exists(&client, Some(7)));
}
