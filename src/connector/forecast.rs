//! What an open would remove: computed from the files of each path without their locks, for those who ask before they open.
//! It uses the same arithmetic as the open.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::opening::{PathState, compare};
use crate::base::block::Extent;
use crate::config::{Config, Layout};
use crate::directory::Directory;
use crate::error::OpenError;
use crate::format::names::StoreId;
use crate::format::superblock::{HEAD_BYTES, SuperblockCopy, tail_offset};
use crate::index::{Sharing, StoredChunks, list_chunks};
use crate::key::Digest;
use crate::placement::{Placement, VolumeSet};
use crate::space_account::SpaceAccount;
use crate::store::chunk_files::evicted_by_open;
use crate::store::data_files::{blocks_left_by_open, device_blocks, parts};
use crate::store::device::{is_device, superblock_copies};
use crate::store::file_uses;

/// Some chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkSum {
    /// How many.
    pub keys: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// What an open would do to one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenForecast {
    /// The path.
    pub path: PathBuf,
    /// There is no store yet: one would be made.
    pub is_new: bool,
    /// What it holds.
    pub stored: ChunkSum,
    /// What would be removed, as it lies beyond the capacity.
    pub beyond_capacity: ChunkSum,
    /// What would be removed, as it was not used for longer than `ttl`.
    pub expired: ChunkSum,
    /// What would be removed, as its keys would belong to other paths. Where a path is new this is an estimate: which
    /// keys it takes is not known before it is made.
    pub moved: ChunkSum,
    /// What would be removed, as the path was away while the others went on.
    pub stale: ChunkSum,
}

/// A chunk, as far as its fate at an open depends on it.
struct Chunk {
    digest: Digest,
    extent: Extent,
    bytes: u64,
    used_ms: u64,
}

/// A path as it is.
struct Found {
    path: PathBuf,
    id: StoreId,
    sharing: Sharing,
    space: SpaceAccount,
    /// `None` where there is no store.
    store: Option<StoredChunks>,
}

impl ChunkSum {
    fn add(&mut self, chunk: &Chunk) {
        self.keys += 1;
        self.bytes += chunk.bytes;
    }
}

/// What an open with `config` would remove from each of its paths. Nothing is changed, nor locked: what is stored or removed
/// meanwhile is not in it.
///
/// # Errors
/// `OpenError` of a store that cannot be read: an open may begin it anew, or refuse it; and of paths that are not of one store.
pub fn forecast_open(config: &Config) -> Result<Vec<OpenForecast>, OpenError> {
    let numbers = 0..config.paths.len();
    let all: Vec<Found> =
        numbers.map(|number| Found::look(config, number)).collect::<Result<_, _>>()?;
    let placement =
        Placement::new(all.iter().map(|found| (found.id, found.space.capacity_bytes())));
    let index_path = config.index_path.as_deref();
    let states: Vec<_> = all.iter().map(|found| found.state(index_path)).collect();
    let are_outdated = compare(&states)?;
    drop(states);
    let live = VolumeSet::first(all.len());
    let forecast = |(number, (found, is_stale)): (usize, (Found, bool))| {
        let stays = |digest| config.keeps_misplaced || placement.volume_of(digest, live) == number;
        found.forecast(config, is_stale, stays)
    };
    all.into_iter().zip(are_outdated).enumerate().map(forecast).collect()
}

impl Found {
    fn look(config: &Config, number: usize) -> Result<Self, OpenError> {
        let path = config.paths[number].clone();
        let store = store_at(&path, config.index_path.as_deref())?;
        let capacity_bytes = match config.capacities_bytes[number] {
            Config::WHOLE_DEVICE => device_bytes(&path)?,
            bytes => bytes,
        };
        let space = SpaceAccount::new(capacity_bytes);
        let (mut id, mut sharing) = ([number as u8; 16], Sharing::Never);
        if let Some(store) = &store {
            (id, sharing) = store.membership()?;
        }
        Ok(Self { path, id, sharing, space, store })
    }

    fn state<'found>(&'found self, index_path: Option<&'found Path>) -> PathState<'found> {
        let has_chunks = move || {
            let chunks = list_chunks(&self.path, index_path);
            chunks.is_ok_and(|mut chunks| chunks.any(|chunk| chunk.is_ok()))
        };
        PathState {
            path: &self.path,
            id: self.store.as_ref().map(|_| self.id),
            sharing: self.sharing,
            has_chunks: Box::new(has_chunks),
        }
    }

    fn forecast(
        self,
        config: &Config,
        is_stale: bool,
        stays: impl Fn(Digest) -> bool,
    ) -> Result<OpenForecast, OpenError> {
        let mut forecast = OpenForecast { path: self.path, ..OpenForecast::default() };
        let Some(mut store) = self.store else {
            return Ok(OpenForecast { is_new: true, ..forecast });
        };
        let chunks = read_chunks(&mut store)?;
        let now_ms = config.clock.now_ms();
        let oldest_ms = config.ttl.map_or(0, |ttl| now_ms.saturating_sub(ttl.as_millis() as u64));
        let (space, layout) = (self.space, store.layout());
        let directory = match layout {
            None => None,
            Some(_) => {
                let opened = Directory::open(&forecast.path);
                Some(Arc::new(opened.map_err(OpenError::io("open", &forecast.path))?))
            }
        };
        let space = match &directory {
            Some(directory) => space.with_floor(directory, config.min_free_bytes),
            None => space,
        };
        let has_index = store.take_into(&space)?;
        let io_error = |error| OpenError::io("read", &forecast.path)(error);
        let blocks = match (&directory, layout) {
            (Some(directory), Some(Layout::Extents)) => {
                let file_uses =
                    || file_uses(chunks.iter().map(|chunk| (chunk.extent, chunk.used_ms)));
                Some(blocks_left_by_open(directory, &space, file_uses).map_err(io_error)?)
            }
            (None, _) => Some(blocks_of_device(&forecast.path, &store, &space)?),
            _ => None,
        };
        let is_there = |extent: Extent| match &blocks {
            Some(blocks) => {
                let length = blocks.get(&extent.file).copied().unwrap_or(0);
                extent.end_block() <= u64::from(length)
            }
            None => true,
        };
        let mut left = Vec::new();
        for chunk in &chunks {
            forecast.stored.add(chunk);
            match () {
                () if !has_index || !is_there(chunk.extent) => forecast.beyond_capacity.add(chunk),
                () if chunk.used_ms < oldest_ms => forecast.expired.add(chunk),
                () if is_stale => forecast.stale.add(chunk),
                () if !stays(chunk.digest) => forecast.moved.add(chunk),
                () => left.push(chunk),
            }
        }
        if let (Some(directory), Some(Layout::Files)) = (&directory, layout) {
            left.sort_by_key(|chunk| chunk.used_ms);
            let all: Vec<_> = left.iter().map(|chunk| (chunk.digest, chunk.extent)).collect();
            let evicted = evicted_by_open(directory, &space, &all)
                .map_err(OpenError::io("read", &forecast.path))?;
            left[..evicted].iter().for_each(|chunk| forecast.beyond_capacity.add(chunk));
        }
        Ok(forecast)
    }
}

/// The store at `path`; `None` where none is there and nothing is lost if one is made.
fn store_at(path: &Path, index_path: Option<&Path>) -> Result<Option<StoredChunks>, OpenError> {
    let is_device = is_device(path)?;
    if is_device {
        let device = File::open(path).map_err(OpenError::io("read", path))?;
        let copies = superblock_copies(&device);
        if copies.iter().all(|copy| matches!(copy, SuperblockCopy::Zero | SuperblockCopy::Foreign))
        {
            return Ok(None);
        }
    }
    match list_chunks(path, index_path) {
        Ok(store) => Ok(Some(store)),
        Err(OpenError::Io { source, .. })
            if !is_device && source.kind() == io::ErrorKind::NotFound =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn device_bytes(path: &Path) -> Result<u64, OpenError> {
    let length = File::open(path).and_then(|mut device| device.seek(SeekFrom::End(0)));
    length.map_err(OpenError::io("read the length of", path))
}

fn read_chunks(store: &mut StoredChunks) -> Result<Vec<Chunk>, OpenError> {
    let chunk = |stored: Result<crate::index::StoredChunk, OpenError>| {
        let stored = stored?;
        Ok(Chunk {
            digest: stored.digest,
            extent: stored.extent,
            bytes: stored.length_bytes,
            used_ms: stored.last_used_ms,
        })
    };
    store.map(chunk).collect()
}

/// Blocks of each part of a device that an open leaves to chunks.
fn blocks_of_device(
    path: &Path,
    store: &StoredChunks,
    space: &SpaceAccount,
) -> Result<HashMap<u32, u32>, OpenError> {
    let size_bytes = device_bytes(path)?;
    let data = store.device_data().unwrap_or_default();
    let data_bytes = data.end.min(size_bytes).saturating_sub(data.start);
    let marks_bytes = HEAD_BYTES + size_bytes - tail_offset(size_bytes);
    let blocks = device_blocks(space, data_bytes, marks_bytes);
    Ok((0..).zip(parts(blocks).map(|(_, blocks)| blocks)).collect())
}
