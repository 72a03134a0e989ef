//! A store with a few chunks, and what holds of one that somebody has changed: what is found stays what it is, what is not found
//! does not come back, and nothing is out of balance.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kvring::{ChunkReader, Config, Connector, StoredChunks, list_chunks};

use crate::common::{Client, Memory, key, pattern};
use crate::input::Input;

/// Longest chunk that is looked at.
const LONGEST: u64 = 1 << 20;
const LENGTHS: [usize; 5] = [100, 4096, 5000, 12_000, 40_000];
/// Chunks of a store before it is changed.
const STORED: usize = 6;

/// Keys that are used: those that are stored at first, and others.
pub(crate) fn keys() -> Vec<String> {
    let mut keys: Vec<String> = (0..9).map(key).collect();
    keys[2] = format!("long{}", "k".repeat(400));
    keys[3].push_str("@salt");
    keys
}

/// Stores some chunks, and closes.
pub(crate) fn fill(config: Config) {
    let client = Client::from(Connector::open(config).unwrap());
    for (number, key) in keys().iter().enumerate().take(STORED) {
        let memory = Memory::patterned(LENGTHS[number % LENGTHS.len()], 0, number as u64);
        assert!(client.set_one(key, &memory));
    }
    client.connector.close();
}

/// What each key has, as far as loads show it.
type Content = BTreeMap<String, Vec<u8>>;

struct Session<'open> {
    client: &'open Client,
    lengths: &'open BTreeSet<usize>,
}

impl Session<'_> {
    fn content(&self) -> Content {
        let found = |key: String| {
            let mut lengths = self.lengths.iter();
            let bytes = lengths.find_map(|length| self.client.get_one(&key, *length));
            bytes.map(|bytes| (key, bytes))
        };
        keys().into_iter().filter_map(found).collect()
    }

    /// Stores, loads and deletes as the input says.
    fn use_it(&self, input: &mut Input, content: &mut Content) {
        let keys = keys();
        for seed in 100..100 + input.below(16) as u64 {
            let key = &keys[input.below(keys.len())];
            match input.choose(&[0, 0, 1, 2]) {
                0 => {
                    let length = input.choose(&LENGTHS);
                    let is_stored = self.client.set_one(key, &Memory::patterned(length, 0, seed));
                    match (is_stored, self.client.get_one(key, length)) {
                        (true, Some(bytes)) => {
                            assert_eq!(bytes, pattern(length, seed));
                            content.insert(key.clone(), bytes);
                        }
                        // What was there before may stay where there is no room.
                        (false, Some(bytes)) => assert_eq!(Some(&bytes), content.get(key)),
                        (true, None) => drop(content.remove(key)),
                        (false, None) => {}
                    }
                }
                1 => {
                    self.client.delete(std::slice::from_ref(key));
                    content.remove(key);
                    assert_eq!(self.client.exists(std::slice::from_ref(key)), [false]);
                }
                _ => assert_within(&self.content(), content),
            }
        }
        assert_within(&self.content(), content);
    }
}

/// Nothing is there that was not there before.
fn assert_within(now: &Content, before: &Content) {
    for (key, bytes) in now {
        assert_eq!(Some(bytes), before.get(key), "{key:?} came back, or has other bytes");
    }
}

/// Lists the chunks of a store that nobody has open, reads them, and returns their lengths.
fn listed(path: &Path) -> Vec<usize> {
    let Ok(mut chunks) = list_chunks(path, None) else { return Vec::new() };
    let mut reader = ChunkReader::new(path, None);
    let mut lengths = Vec::new();
    while let Some(Ok(chunk)) = next(&mut chunks) {
        if chunk.length_bytes <= LONGEST {
            lengths.push(chunk.length_bytes as usize);
            reader.read(&chunks, &chunk, |_| {});
        }
    }
    chunks.damage();
    lengths
}

fn next(chunks: &mut StoredChunks) -> Option<Result<kvring::StoredChunk, kvring::OpenError>> {
    chunks.next()
}

/// Opens a store that was changed, uses it, and opens it again. A refused open is all right.
pub(crate) fn exercise(path: &Path, config: impl Fn() -> Config, input: &mut Input) {
    let mut lengths: BTreeSet<usize> = LENGTHS.into();
    lengths.extend(listed(path).into_iter().take(16));
    let Ok(connector) = Connector::open(config()) else { return };
    let client = Client::from(connector);
    client.assert_consistent();
    let session = Session { client: &client, lengths: &lengths };
    let mut content = session.content();
    session.use_it(input, &mut content);
    client.assert_consistent();
    client.connector.close();
    drop(client);

    listed(path);
    let client = Client::from(Connector::open(config()).unwrap());
    let recovery = client.connector.recovery();
    assert!(recovery.clean_shutdown && recovery.reset.is_none(), "{recovery:?}");
    let damage = [
        recovery.torn,
        recovery.duplicate,
        recovery.overlapping,
        recovery.out_of_range,
        u64::from(recovery.truncated),
    ];
    assert_eq!(damage, [0; 5], "a store that was closed is damaged: {recovery:?}");
    client.assert_consistent();
    let session = Session { client: &client, lengths: &lengths };
    assert_within(&session.content(), &content);
    session.use_it(input, &mut content);
    client.assert_consistent();
    client.connector.close();
}
