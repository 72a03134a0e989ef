//! A block device whose superblock and index an input changes: opened as a whole, used, and opened again. It needs root.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::OnceLock;

use kvring::{Config, Durability, Layout};

use crate::common::MIB;
use crate::common::loop_device::LoopDevice;
use crate::forged::{FORGED_BYTES, change_index, overwrite, seal};
use crate::input::Input;
use crate::open_index::config;
use crate::used_store::{exercise, fill, keys};

const DEVICE_MIB: u64 = 32;
/// The superblock without the zeros behind it, and where it is.
const SUPERBLOCK_BYTES: usize = 88;
const SUPERBLOCKS_AT: [u64; 2] = [0, MIB - 4096];
const INDEX_AT: u64 = MIB;
/// More than a run writes records, or chunks.
const WRITTEN_INDEX_BYTES: usize = 64 << 10;
const WRITTEN_DATA_BYTES: usize = 2 << 20;
const DATA_OFFSET_AT: usize = 64;

/// A device with a store that is written anew for each input.
pub struct Device {
    device: LoopDevice,
    file: File,
    /// What is on it before it is changed, by where it is.
    parts: Vec<(u64, Vec<u8>)>,
}

fn device_config(device: &LoopDevice) -> Config {
    config(device.path(), Config::WHOLE_DEVICE, Layout::Extents)
}

impl Device {
    /// Makes one; none where that cannot be.
    pub fn new() -> Option<Self> {
        let device = LoopDevice::new(DEVICE_MIB, 512)?;
        fill(device_config(&device));
        let file = File::options().read(true).write(true).open(device.path()).unwrap();
        let read = |at: u64, length: usize| {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, at).unwrap();
            (at, bytes)
        };
        let superblock = read(0, SUPERBLOCK_BYTES).1;
        let data_at = superblock[DATA_OFFSET_AT..][..8].try_into().unwrap();
        let parts = vec![
            read(0, MIB as usize),
            read(INDEX_AT, WRITTEN_INDEX_BYTES),
            read(u64::from_le_bytes(data_at), WRITTEN_DATA_BYTES),
        ];
        Some(Self { device, file, parts })
    }

    /// Has the kernel take it away when this process ends, however it does.
    fn end_with_process(&self) {
        let _ = Command::new("losetup").arg("--detach").arg(self.device.path()).status();
    }

    /// Runs one input.
    pub fn run(&self, data: &[u8]) {
        let mut input = Input::new(data);
        let durability = input.choose(&[Durability::BestEffort, Durability::Persistent]);
        for (at, bytes) in &self.parts {
            self.file.write_all_at(bytes, *at).unwrap();
        }
        let (_, superblocks) = &self.parts[0];
        for at in SUPERBLOCKS_AT {
            if input.choose(&[0, 0, 0, 0, 0, 0, 1]) == 1 {
                let mut superblock = superblocks[at as usize..][..SUPERBLOCK_BYTES].to_vec();
                overwrite(&mut input, &mut superblock);
                if input.is_so() {
                    seal(&mut superblock);
                }
                self.file.write_all_at(&superblock, at).unwrap();
            }
        }
        let mut index = self.parts[1].1[..FORGED_BYTES].to_vec();
        change_index(&mut input, &mut index, &keys());
        self.file.write_all_at(&index, INDEX_AT).unwrap();
        let config = || Config { durability, ..device_config(&self.device) };
        exercise(self.device.path(), config, &mut input);
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| Device::new().inspect(Device::end_with_process));
    device.as_ref().expect("a loop device").run(data);
}
