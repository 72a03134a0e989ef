//! Growth by data files, and why the store does not grow.

use super::*;

impl ExtentStore {
    pub(super) fn is_refused(&self) -> bool {
        self.refusal.lock().as_ref().is_some_and(|(again, _)| Instant::now() < *again)
    }

    /// Why there is no extent for `needed_bytes`.
    pub(super) fn why_full(&self, needed_bytes: u64) -> StoreError {
        if let Some((again, error)) = &*self.refusal.lock()
            && Instant::now() < *again
        {
            return error.clone();
        }
        let can_grow =
            self.directory.is_some() && next_file_bytes(&self.space) >= needed_bytes.max(1);
        match can_grow || self.is_growing.load(Ordering::SeqCst) {
            true => StoreError::Growing { needed_bytes },
            false => self.space.full(needed_bytes),
        }
    }

    /// Length of the next data file, which is to have room for `needed_bytes`, and what the index has to get before.
    fn plan_file(
        &self,
        needed_bytes: u64,
        most_bytes: u64,
        index: &dyn IndexShare,
    ) -> Result<(u64, u64), StoreError> {
        let fill = self.fill();
        let index_bytes =
            |file_bytes| index.missing_bytes(fill.total_bytes + file_bytes, fill.allocated_bytes);
        let wanted_bytes = next_file_bytes(&self.space).min(most_bytes);
        let free_bytes = self.space.free_above_floor_bytes();
        let left_bytes = self.space.left_bytes();
        let within = |bytes: u64| {
            file_bytes_within(bytes.saturating_sub(index_bytes(wanted_bytes))).min(wanted_bytes)
        };
        let (most_bytes, size_bytes) = (within(left_bytes), within(left_bytes.min(free_bytes)));
        if most_bytes < needed_bytes.max(MIB) {
            return Err(self.space.full(needed_bytes));
        }
        // Where the file system has little, many small files would come of taking each bit that it gives.
        let least_bytes = match fill.total_bytes {
            0 => MIB,
            _ => SMALLEST_FILE_BYTES.min(most_bytes),
        };
        let least_bytes = least_bytes.max(needed_bytes);
        match size_bytes < least_bytes {
            true => Err(StoreError::Floor { needed_bytes: least_bytes, free_bytes }),
            false => Ok((size_bytes, index_bytes(size_bytes))),
        }
    }

    pub(super) fn try_to_grow(
        &self,
        needed_bytes: u64,
        index: &dyn IndexShare,
    ) -> Result<(), StoreError> {
        let mut most_bytes = u64::MAX;
        loop {
            let (size_bytes, index_bytes) = self.plan_file(needed_bytes, most_bytes, index)?;
            // First: what data files have, the index never gets.
            index.preallocate(index_bytes)?;
            match self.add_file(size_bytes) {
                Err(StoreError::Grow { .. })
                    if size_bytes / 2 >= needed_bytes.max(SMALLEST_FILE_BYTES) =>
                {
                    most_bytes = size_bytes / 2 / MIB * MIB;
                }
                outcome => return outcome,
            }
        }
    }

    /// Makes a data file. The locks are taken only once it is there for good.
    pub(super) fn add_file(&self, size_bytes: u64) -> Result<(), StoreError> {
        let Some(directory) = &self.directory else { return Err(self.space.full(size_bytes)) };
        self.space.reserve_growth(on_disk_bytes(size_bytes))?;
        match make_file(directory, &self.all_files(), size_bytes) {
            Ok((number, file)) => {
                let mut files = self.files.write();
                let mut allocator = self.allocator.lock();
                files.insert(number, Arc::new(file));
                allocator.add_file(number, (size_bytes / BLOCK_BYTES) as u32);
                Ok(())
            }
            Err((name, source)) => {
                self.space.release(on_disk_bytes(size_bytes));
                let path = directory.path().join(&name);
                Err(StoreError::Grow { path, bytes: size_bytes, source: Arc::new(source) })
            }
        }
    }
}

/// Makes a data file of `size_bytes` beside `files`, durably. Its number is the lowest that none of them and that nothing else in the
/// directory has: what is there was put there by somebody else.
fn make_file(
    directory: &Directory,
    files: &DataFiles,
    size_bytes: u64,
) -> Result<(u32, DataFile), (String, io::Error)> {
    let count = files.len() as u32;
    let is_free = |number: &u32| !files.contains_key(number);
    let mut numbers = (0..count + OTHERS_FILES).filter(is_free).peekable();
    while let Some(number) = numbers.next() {
        let name = data_file_name(number);
        let file = match directory.create(&name) {
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && numbers.peek().is_some() =>
            {
                continue;
            }
            Err(source) => return Err((name, source)),
            Ok(file) => file,
        };
        let make = || -> io::Result<(u32, DataFile)> {
            let file = DataFile::lock(directory, &name, file, || None)?;
            file.preallocate(size_bytes)?;
            // The file's name too: without it a sync of the file is worth nothing after power loss.
            directory.sync()?;
            Ok((number, file))
        };
        return make().map_err(|source| {
            // What fallocate had reserved before it failed goes back with the file.
            let _ = remove_file(directory, &name);
            (name, source)
        });
    }
    Err((data_file_name(count), io::Error::from_raw_os_error(libc::EEXIST)))
}
