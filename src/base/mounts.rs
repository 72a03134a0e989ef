//! What is mounted where, as proc_pid_mountinfo(5) has it.

use std::ffi::OsString;
use std::fmt::{Display, Formatter};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::{fs, io};

/// A file system, and the directory that it is mounted at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) file_system: String,
    /// The device, or what the file system names instead.
    pub(crate) source: String,
}

impl Mount {
    /// That of an open file.
    ///
    /// # Errors
    /// /proc cannot be read, or does not have it.
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim);
        let table = fs::read("/proc/self/mountinfo")?;
        let found = id.and_then(|id| Self::with_id(&table, id));
        found.ok_or_else(|| io::Error::other("/proc/self/mountinfo does not have its mount"))
    }

    fn with_id(table: &[u8], id: &str) -> Option<Self> {
        table.split(|byte| *byte == b'\n').find_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            (fields.next()? == id.as_bytes()).then_some(())?;
            let point = PathBuf::from(OsString::from_vec(unescape(fields.nth(3)?)));
            // Optional fields come before.
            let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
            let mut text = || rest.next().map(|field| lossy(&unescape(field)));
            Some(Self { point, file_system: text()?, source: text()? })
        })
    }
}

impl Display for Mount {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} on {}", self.file_system, self.source)
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Space, tab, newline and backslash are there as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let digits = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_mount_is_found_by_its_number_and_read() {
        let table = b"22 1 254:1 / / rw shared:1 - ext4 /dev/vda1 rw\n\
            122 22 0:40 / /mnt/of\\040all\\134 rw shared:1 master:2 - tmpfs tmp\\011fs rw\n\
            23 22 0:41 / /mnt rw - xfs /dev/vdb rw\n";
        let found = Mount::with_id(table, "122").unwrap();
        assert_eq!(found.point, Path::new("/mnt/of all\\"));
        assert_eq!((found.file_system.as_str(), found.source.as_str()), ("tmpfs", "tmp\tfs"));
        assert_eq!(Mount::with_id(table, "22").unwrap().to_string(), "ext4 on /dev/vda1");
        assert_eq!(Mount::with_id(table, "23").unwrap().to_string(), "xfs on /dev/vdb");
        assert_eq!(Mount::with_id(table, "2"), None);
        assert_eq!(Mount::with_id(b"24 1 0:1 / /cut", "24"), None);
    }

    #[test]
    fn every_open_file_has_a_mount() {
        let proc = File::open("/proc/self/status").unwrap();
        let found = Mount::of(proc.as_fd()).unwrap();
        assert_eq!(
            (found.point.as_path(), found.file_system.as_str()),
            (Path::new("/proc"), "proc")
        );
    }
}
