//! Options of a run: each named once, with unit, default, range, meaning and the code that takes its value.

use std::time::Duration;

use kvring::{BLOCK_BYTES, OptionValue};

use crate::error::PlanError;
use crate::plan::{Pattern, Plan};
use crate::sizes::{ChunkSizes, size_bytes};

/// Most keys that a job may keep in flight.
const MAX_IODEPTH: u64 = 65536;

/// Most submitting threads.
const MAX_JOBS: u64 = 128;

/// Description of one option of a run.
pub struct BenchOption {
    /// Its name, as fio has it where fio has it.
    pub name: &'static str,
    /// Unit of its value; empty for a name.
    pub unit: &'static str,
    /// Value it has when not given.
    pub default: &'static str,
    /// Values it accepts.
    pub range: &'static str,
    /// What it does.
    pub meaning: &'static str,
    apply: fn(&mut Plan, &OptionValue) -> Result<(), String>,
}

/// All options of a run.
pub const BENCH_OPTIONS: &[BenchOption] = &[
    BenchOption {
        name: "rw",
        unit: "",
        default: "read",
        range: "read, write, rw, randread, randwrite, randrw, exists or delete",
        meaning: "workload: GETs (read), SETs (write), both (rw), at random (rand...), EXISTS or DELETEs; all but write and randwrite first store every chunk, untimed",
        apply: |plan, value| {
            let pattern = Pattern::parse(&text(value)?);
            set(&mut plan.rw, pattern.ok_or_else(|| "it is not one of the choices".to_owned()))
        },
    },
    BenchOption {
        name: "bs",
        unit: "bytes",
        default: "1MiB",
        range: "a size from 1 byte to 2 GiB, a list such as 4k,64k or a range such as 4k-1m",
        meaning: "chunk length, or a list or range of lengths",
        apply: |plan, value| set(&mut plan.sizes, ChunkSizes::parse(&text(value)?)),
    },
    BenchOption {
        name: "iodepth",
        unit: "keys",
        default: "32",
        range: "1 to 65536",
        meaning: "keys in flight per job, at most",
        apply: |plan, value| set(&mut plan.iodepth, count(value, 1, MAX_IODEPTH)),
    },
    BenchOption {
        name: "batch",
        unit: "keys",
        default: "0",
        range: "1 to iodepth, or 0 for 8 or, where that is less, iodepth",
        meaning: "keys per submit",
        apply: |plan, value| set(&mut plan.batch, count(value, 0, MAX_IODEPTH)),
    },
    BenchOption {
        name: "numjobs",
        unit: "threads",
        default: "1",
        range: "1 to 128",
        meaning: "threads that submit to the store, each with its own keys",
        apply: |plan, value| set(&mut plan.numjobs, count(value, 1, MAX_JOBS)),
    },
    BenchOption {
        name: "size",
        unit: "bytes",
        default: "1GiB",
        range: "a size of at least bs for each job",
        meaning: "bytes of all chunks; without runtime each is moved once",
        apply: |plan, value| {
            plan.size_bytes = match value {
                OptionValue::Integer(size) => {
                    u64::try_from(*size).map_err(|_| "it is out of range")?
                }
                other => size_bytes(&text(other)?)?,
            };
            Ok(())
        },
    },
    BenchOption {
        name: "runtime",
        unit: "seconds",
        default: "0",
        range: "0 to 86400; 0 is no limit",
        meaning: "duration",
        apply: |plan, value| {
            let seconds = number(value)?;
            if !(0.0..=86400.0).contains(&seconds) {
                return Err("it is out of range".into());
            }
            plan.runtime = (seconds > 0.0).then(|| Duration::from_secs_f64(seconds));
            Ok(())
        },
    },
    BenchOption {
        name: "rwmixread",
        unit: "percent",
        default: "50",
        range: "0 to 100",
        meaning: "share of GETs among the batches of rw and randrw",
        apply: |plan, value| set(&mut plan.rwmixread, count(value, 0, 100)),
    },
    BenchOption {
        name: "align",
        unit: "bytes",
        default: "4096",
        range: "a power of two from 1 to 4096",
        meaning: "alignment of the buffers",
        apply: |plan, value| {
            let align_bytes = count(value, 1, BLOCK_BYTES)?;
            if !align_bytes.is_power_of_two() {
                return Err(format!("{align_bytes} is not a power of two"));
            }
            plan.align_bytes = align_bytes;
            Ok(())
        },
    },
    BenchOption {
        name: "verify",
        unit: "",
        default: "off",
        range: "'on' or 'off'",
        meaning: "compare loaded chunks with those stored; costs CPU time",
        apply: |plan, value| set(&mut plan.verify, switch(value)),
    },
    BenchOption {
        name: "registered",
        unit: "",
        default: "off",
        range: "'on' or 'off'",
        meaning: "register the buffers with the store",
        apply: |plan, value| set(&mut plan.registered, switch(value)),
    },
    BenchOption {
        name: "seed",
        unit: "",
        default: "1",
        range: "0 to 18446744073709551615",
        meaning: "seed of orders, lengths and contents",
        apply: |plan, value| set(&mut plan.seed, count(value, 0, u64::MAX)),
    },
];

impl BenchOption {
    pub(crate) fn set(&self, plan: &mut Plan, value: &OptionValue) -> Result<(), PlanError> {
        (self.apply)(plan, value).map_err(|reason| PlanError::Invalid {
            name: self.name,
            value: value.to_string(),
            reason,
            range: self.range,
        })
    }
}

fn set<T>(field: &mut T, value: Result<T, String>) -> Result<(), String> {
    *field = value?;
    Ok(())
}

fn switch(value: &OptionValue) -> Result<bool, String> {
    match value {
        OptionValue::Boolean(is_on) => Ok(*is_on),
        other => match text(other)?.as_str() {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err("it is not one of the choices".into()),
        },
    }
}

/// A string, or a number as one.
fn text(value: &OptionValue) -> Result<String, String> {
    match value {
        OptionValue::Text(text) => Ok(text.trim().to_owned()),
        OptionValue::Integer(number) => Ok(number.to_string()),
        _ => Err("it is neither a string nor a whole number".into()),
    }
}

fn count(value: &OptionValue, least: u64, most: u64) -> Result<u64, String> {
    let number = text(value)?.parse::<i128>().map_err(|_| "it is not a whole number")?;
    match u64::try_from(number) {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err("it is out of range".into()),
    }
}

fn number(value: &OptionValue) -> Result<f64, String> {
    match value {
        OptionValue::Float(number) => Ok(*number),
        other => text(other)?.parse().map_err(|_| "it is not a number".into()),
    }
}
