//! Write amplification inside a drive with and without write streams: a whole store plays a day of traces, and a model of a flash
//! translation layer gets its writes and discards. JSON on standard output; `make placement` runs it.
//!
//! `cargo run --release --features bench --example placement_model -- --device /dev/loop0 --trace NAME=BYTES=FILE`

#[path = "../../eviction/simulator/generate.rs"]
#[allow(dead_code, reason = "of the traces made by rule some are enough")]
mod generate;
#[path = "../../eviction/simulator/random.rs"]
#[allow(dead_code, reason = "as above")]
mod random;
#[path = "../../eviction/simulator/trace.rs"]
#[allow(dead_code, reason = "as above")]
mod trace;

mod ftl;
mod play;
mod recorder;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use kvring::{Discard, WriteStreams};

use ftl::{Ftl, PAGE_BYTES};
use play::{Tenant, play};
use recorder::Request;
use trace::Trace;

/// More flash than the drive says it has: of drives for reading, and for mixed use.
const SPARE_SHARES: [f64; 2] = [0.07, 0.28];
/// What is written before it is measured, in parts of the drive: it is full then, and the collection in its stride.
const WARM_UP: u64 = 2;
/// Made traces have chunks of so many bytes.
const MADE_CHUNK_BYTES: usize = 512 << 10;

/// Plays traces to a store on a block device, and its writes to a model of a drive.
#[derive(Parser)]
struct Arguments {
    /// A block device that may be formatted, such as a loop device over a sparse file: little is written to it.
    #[arg(long)]
    device: PathBuf,
    /// A trace from a file with a line for each request: the numbers of its chunks. Without any, traces are made by rule.
    #[arg(long = "trace", value_name = "NAME=BYTES=FILE", value_parser = parse_tenant)]
    tenants: Vec<(String, usize, PathBuf)>,
    /// Requests of each trace that is made by rule.
    #[arg(long, default_value_t = 4_000)]
    requests: usize,
    /// Write streams of the drive.
    #[arg(long, default_value_t = 8)]
    streams: u8,
    /// Which chunks are kept apart: 'lifetime' or 'namespace'.
    #[arg(long)]
    rule: String,
    /// Whether freed extents are discarded.
    #[arg(long)]
    discard: bool,
}

fn parse_tenant(text: &str) -> Result<(String, usize, PathBuf), String> {
    let mut parts = text.splitn(3, '=');
    let (Some(name), Some(bytes), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("it is not NAME=BYTES=FILE".into());
    };
    let bytes = bytes.parse().map_err(|_| format!("'{bytes}' is no number of bytes"))?;
    Ok((name.to_owned(), bytes, path.into()))
}

/// A drive that was told of streams, or not.
struct Drive {
    spare_share: f64,
    is_told: bool,
    ftl: Ftl,
    /// Pages of host and media that do not count.
    before: (u64, u64),
}

impl Drive {
    fn take(&mut self, request: Request) {
        match request {
            Request::Write { offset_bytes, length_bytes, stream } => {
                // The first stream is that of writes without one.
                let handle = if self.is_told { stream.saturating_sub(1) } else { 0 };
                self.ftl.write(offset_bytes, length_bytes, handle);
            }
            Request::Trim { offset_bytes, length_bytes } => {
                self.ftl.trim(offset_bytes, length_bytes)
            }
        }
    }

    fn json(&self) -> String {
        let (host, media) =
            (self.ftl.host_pages - self.before.0, self.ftl.media_pages - self.before.1);
        format!(
            "{{\"spare_share\": {}, \"is_told\": {}, \"host_pages\": {host}, \"media_pages\": {media}}}",
            self.spare_share, self.is_told,
        )
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("placement_model: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<String> {
    let rule = WriteStreams::ALL.into_iter().find(|rule| rule.name() == arguments.rule);
    let rule = rule.ok_or_else(|| io::Error::other("--rule is 'lifetime' or 'namespace'"))?;
    let discard = if arguments.discard { Discard::Free } else { Discard::Format };
    let drive_bytes = size_bytes(&arguments.device)?;
    let drive = |spare_share, is_told| {
        let ftl = Ftl::new(drive_bytes, spare_share, arguments.streams);
        Drive { spare_share, is_told, ftl, before: (0, 0) }
    };
    let mut drives: Vec<Drive> = SPARE_SHARES
        .iter()
        .flat_map(|spare| [false, true].map(|is_told| drive(*spare, is_told)))
        .collect();
    let (mut is_warm, mut written, mut trimmed) = (false, vec![0_u64; 256], 0);
    let filled = play(
        &tenants(arguments)?,
        &arguments.device,
        (rule, discard),
        arguments.streams,
        |requests| {
            for request in requests {
                drives.iter_mut().for_each(|drive| drive.take(*request));
                match request {
                    Request::Write { length_bytes, stream, .. } => {
                        written[usize::from(*stream)] += length_bytes
                    }
                    Request::Trim { length_bytes, .. } => trimmed += length_bytes,
                }
            }
            if !is_warm && drives[0].ftl.host_pages * PAGE_BYTES >= WARM_UP * drive_bytes {
                is_warm = true;
                drives
                    .iter_mut()
                    .for_each(|one| one.before = (one.ftl.host_pages, one.ftl.media_pages));
            }
        },
    )?;
    if !is_warm {
        return Err(io::Error::other("the traces write less than twice the size of the device"));
    }
    let drives: Vec<String> = drives.iter().map(Drive::json).collect();
    Ok(format!(
        "{{\"filled\": {filled:.3}, \"drive_bytes\": {drive_bytes}, \"trimmed_bytes\": {trimmed}, \"written_bytes\": {:?},\n\"drives\": [{}]}}",
        &written[..=usize::from(arguments.streams)],
        drives.join(",\n"),
    ))
}

fn tenants(arguments: &Arguments) -> io::Result<Vec<Tenant>> {
    if arguments.tenants.is_empty() {
        let made = generate::all(arguments.requests).into_iter().take(4);
        return Ok(made.map(|trace| Tenant { trace, chunk_bytes: MADE_CHUNK_BYTES }).collect());
    }
    let read = |(name, chunk_bytes, path): &(String, usize, PathBuf)| {
        Ok(Tenant { trace: Trace::read(name, path)?, chunk_bytes: *chunk_bytes })
    };
    arguments.tenants.iter().map(read).collect()
}

fn size_bytes(device: &Path) -> io::Result<u64> {
    use std::io::Seek;
    std::fs::File::open(device)?.seek(io::SeekFrom::End(0))
}
