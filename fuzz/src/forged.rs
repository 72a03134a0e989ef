//! An index that an input changes, where it says so with the checksums that it should have. docs/explanation/format.md draws it.

use blake2::digest::consts::U16;
use blake2::{Blake2b, Digest};

use crate::common::records::{RECORD_BYTES, RECORDS_AT, Record};
use crate::input::Input;

/// Records that are changed.
const SLOTS: usize = 24;
/// Bytes of the index that are.
pub(crate) const FORGED_BYTES: usize = RECORDS_AT as usize + SLOTS * RECORD_BYTES;

/// Where a field of a record is, and how long it is.
const FIELDS: [(usize, usize); 14] = [
    (0, 8),   // last use
    (8, 4),   // checksum
    (12, 1),  // state
    (13, 1),  // kind of the chunk's checksum
    (14, 2),  // length of the key
    (16, 16), // digest
    (32, 8),  // generation
    (40, 8),  // length
    (48, 8),  // created
    (56, 4),  // data file
    (60, 4),  // first block
    (64, 8),  // the chunk's checksum
    (72, 8),  // namespace
    (80, 4),  // next slot
];
const KEY_AT: usize = 88;
const KEY_PART_BYTES: usize = 168;

/// Structures of the first page: where, and how long with the checksum at their end.
const HEADER: (usize, usize) = (0, 48);
const SESSION: (usize, usize) = (512, 112);
const LENGTH: (usize, usize) = (1024, 16);
const MEMBERSHIP: (usize, usize) = (2048, 496);
const MEMBERSHIP_CHECKSUM_AT: usize = MEMBERSHIP.0 + 12;

/// Gives a structure the checksum that it should have.
pub(crate) fn seal(structure: &mut [u8]) {
    let (content, checksum) = structure.split_at_mut(structure.len() - 4);
    checksum.copy_from_slice(&crc32c::crc32c(content).to_le_bytes());
}

/// Puts a number, or bytes, into `structure`.
pub(crate) fn overwrite(input: &mut Input, structure: &mut [u8]) {
    let at = input.below(structure.len()) & !3;
    let length = input.choose(&[8, 4, 2, 1]).min(structure.len() - at);
    structure[at..at + length].copy_from_slice(&input.value().to_le_bytes()[..length]);
}

/// Changes the first bytes of an index, and returns how long it is to be, if it is not to stay as it was.
pub(crate) fn change_index(input: &mut Input, index: &mut [u8], keys: &[String]) -> Option<u64> {
    let mut new_length = None;
    for _ in 0..input.below(12) {
        let slot = input.below(SLOTS);
        match input.choose(&[0, 0, 1, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9]) {
            // A field of a record.
            0 => change_record(index, slot, |record| {
                let (at, length) = input.choose(&FIELDS);
                let bytes = [input.value().to_le_bytes(), input.value().to_le_bytes()].concat();
                record[at..at + length].copy_from_slice(&bytes[..length]);
            }),
            // A record in another's place, of another time or space.
            1 => {
                let copied = record_at(index, input.below(SLOTS)).0;
                let (generation, block) = (input.value(), input.number::<1>() as u32);
                let changes = input.number::<1>();
                change_record(index, slot, |record| {
                    *record = copied;
                    if changes & 1 != 0 {
                        record[32..40].copy_from_slice(&generation.to_le_bytes());
                    }
                    if changes & 2 != 0 {
                        record[60..64].copy_from_slice(&block.to_le_bytes());
                    }
                });
            }
            // A record of a key, from nothing.
            2 => {
                let key = &keys[input.below(keys.len())];
                let digest: [u8; 16] = Blake2b::<U16>::digest(key.as_bytes()).into();
                let part = &key.as_bytes()[..key.len().min(KEY_PART_BYTES)];
                let made = Record([0; RECORD_BYTES])
                    .with(0, &input.value().to_le_bytes())
                    .with(12, &[1])
                    .with(14, &(key.len() as u16).to_le_bytes())
                    .with(16, &digest)
                    .with(32, &input.number::<2>().to_le_bytes())
                    .with(40, &input.value().to_le_bytes())
                    .with(60, &(input.number::<2>() as u32).to_le_bytes())
                    .with(80, &u32::MAX.to_le_bytes())
                    .with(KEY_AT, part);
                change_record(index, slot, |record| *record = made.0);
            }
            3 => change_structure(input, index, SESSION),
            4 => change_structure(input, index, LENGTH),
            5 => change_structure(input, index, HEADER),
            6 => {
                let (at, length) = MEMBERSHIP;
                overwrite(input, &mut index[at..at + length]);
                let checksum = MEMBERSHIP_CHECKSUM_AT..MEMBERSHIP_CHECKSUM_AT + 4;
                index[checksum.clone()].fill(0);
                let computed = crc32c::crc32c(&index[at..at + length]);
                index[checksum].copy_from_slice(&computed.to_le_bytes());
            }
            // Whatever, without its checksum.
            7 => overwrite(input, index),
            // Cut off within a record, or anywhere.
            8 => {
                let within = input.below(RECORD_BYTES) as u64;
                new_length = Some(RECORDS_AT + (slot * RECORD_BYTES) as u64 + within);
            }
            _ => new_length = Some(input.value() % (4 << 20)),
        }
    }
    new_length
}

fn record_at(index: &[u8], slot: usize) -> Record {
    let at = RECORDS_AT as usize + slot * RECORD_BYTES;
    let mut record = [0; RECORD_BYTES];
    record.copy_from_slice(&index[at..at + RECORD_BYTES]);
    Record(record)
}

fn change_record(index: &mut [u8], slot: usize, change: impl FnOnce(&mut [u8; RECORD_BYTES])) {
    let mut record = record_at(index, slot);
    change(&mut record.0);
    let at = RECORDS_AT as usize + slot * RECORD_BYTES;
    index[at..at + RECORD_BYTES].copy_from_slice(&record.sealed());
}

fn change_structure(input: &mut Input, index: &mut [u8], (at, length): (usize, usize)) {
    overwrite(input, &mut index[at..at + length]);
    seal(&mut index[at..at + length]);
}
