//! Growth by data files, and why the store does not grow.

use super::*;

impl ExtentStore {
    pub(super) fn is_refused(&self) -> bool {
        self.refusal.lock().as_ref().is_some_and(|(again, _)| Instant::now() < *again)
    }

    /// Why there is no extent for `needed_bytes`.
    pub(super) fn why_full(&self, needed_bytes: u64) -> StoreError {
        if let Some(error) = self.short_of_blocks() {
            return error;
        }
        if let Some((again, error)) = &*self.refusal.lock()
            && Instant::now() < *again
        {
            return error.clone();
        }
        let can_grow =
            self.directory.is_some() && next_file_bytes(&self.budget) >= needed_bytes.max(1);
        match can_grow || self.is_growing.load(Ordering::SeqCst) {
            true => StoreError::Growing { needed_bytes },
            false => {
                StoreError::Full { needed_bytes, capacity_bytes: self.budget.capacity_bytes() }
            }
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
        let wanted_bytes = next_file_bytes(&self.budget).min(most_bytes);
        let free_bytes = self.budget.free_above_floor_bytes();
        let left_bytes = self.budget.left_bytes();
        let within = |bytes: u64| {
            file_bytes_within(bytes.saturating_sub(index_bytes(wanted_bytes))).min(wanted_bytes)
        };
        let (most_bytes, size_bytes) = (within(left_bytes), within(left_bytes.min(free_bytes)));
        if most_bytes < needed_bytes.max(MIB) {
            let capacity_bytes = self.budget.capacity_bytes();
            return Err(StoreError::Full { needed_bytes, capacity_bytes });
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
    fn add_file(&self, size_bytes: u64) -> Result<(), StoreError> {
        let Some(directory) = &self.directory else {
            let capacity_bytes = self.budget.capacity_bytes();
            return Err(StoreError::Full { needed_bytes: size_bytes, capacity_bytes });
        };
        self.budget.reserve_growth(on_disk_bytes(size_bytes))?;
        let is_taken: Vec<bool> = self.files.read().iter().map(Option::is_some).collect();
        match make_file(directory, &is_taken, size_bytes) {
            Ok((number, file)) => {
                let mut files = self.files.write();
                let mut allocator = self.allocator.lock();
                set_file(&mut files, number as u32, file);
                allocator.add_file(number as u32, (size_bytes / BLOCK_BYTES) as u32);
                Ok(())
            }
            Err((name, source)) => {
                self.budget.release(on_disk_bytes(size_bytes));
                let path = directory.path_of(&name);
                Err(StoreError::Grow { path, bytes: size_bytes, source: Arc::new(source) })
            }
        }
    }
}

/// Makes a data file of `size_bytes`, durably. Its number is the lowest that is not taken and that nothing else in the
/// directory has: what is there was put there by somebody else.
fn make_file(
    directory: &Directory,
    is_taken: &[bool],
    size_bytes: u64,
) -> Result<(usize, DataFile), (String, io::Error)> {
    let is_free = |number: &usize| !is_taken.get(*number).copied().unwrap_or(false);
    let mut numbers = (0..is_taken.len() + OTHERS_FILES).filter(is_free).peekable();
    while let Some(number) = numbers.next() {
        let name = data_file_name(number as u32);
        let file = match DataFile::create(directory, &name) {
            Ok(file) => file,
            Err(OpenError::Io { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists && numbers.peek().is_some() =>
            {
                continue;
            }
            Err(OpenError::Io { source, .. }) => return Err((name, source)),
            Err(error) => return Err((name, io::Error::other(error.to_string()))),
        };
        // The file's name too: without it a sync of the file is worth nothing after power loss.
        let made = file.preallocate(size_bytes).and_then(|()| directory.sync());
        return match made {
            Ok(()) => Ok((number, file)),
            Err(source) => {
                // What fallocate had reserved before it failed goes back with the file.
                let _ = remove_file(directory, &name);
                Err((name, source))
            }
        };
    }
    Err((data_file_name(is_taken.len() as u32), io::Error::from_raw_os_error(libc::EEXIST)))
}
