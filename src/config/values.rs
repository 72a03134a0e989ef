//! Values as callers give them, and how they are read.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use nix::unistd::{Uid, User};

/// A value as a caller (JSON, Python, Rust) gives it.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// A whole number.
    Integer(i128),
    /// A number with a fraction.
    Float(f64),
    /// A string.
    Text(String),
    /// Several values.
    List(Vec<OptionValue>),
    /// Names with a value each.
    Map(Vec<(String, OptionValue)>),
    /// A truth value.
    Boolean(bool),
    /// Anything else, as its text; no option takes it, so that it is refused by name.
    Other(String),
}

impl std::fmt::Display for OptionValue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Integer(value) => write!(formatter, "{value}"),
            Self::Float(value) => write!(formatter, "{value}"),
            Self::Text(value) => write!(formatter, "'{value}'"),
            Self::List(values) => {
                formatter.write_str("[")?;
                for (position, value) in values.iter().enumerate() {
                    let separator = if position == 0 { "" } else { ", " };
                    write!(formatter, "{separator}{value}")?;
                }
                formatter.write_str("]")
            }
            Self::Map(values) => {
                formatter.write_str("{")?;
                for (position, (name, value)) in values.iter().enumerate() {
                    let separator = if position == 0 { "" } else { ", " };
                    write!(formatter, "{separator}'{name}': {value}")?;
                }
                formatter.write_str("}")
            }
            Self::Boolean(value) => write!(formatter, "{value}"),
            Self::Other(value) => write!(formatter, "{value}"),
        }
    }
}

/// The values of a list; a value that is none stands for a list of its own.
pub(super) fn each(value: &OptionValue) -> impl Iterator<Item = &OptionValue> {
    match value {
        OptionValue::List(values) => values.iter(),
        one => std::slice::from_ref(one).iter(),
    }
}

/// A path. As in a shell, `~` at its beginning is the home directory of this user and `~name` that of another.
pub(super) fn path(value: &OptionValue) -> Result<PathBuf, String> {
    let path = text(value)?;
    if path.is_empty() {
        return Err("it is empty".into());
    }
    let Some(rest) = path.strip_prefix('~') else { return Ok(path.into()) };
    let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
    let home = match (name, std::env::var_os("HOME").filter(|home| !home.is_empty())) {
        ("", Some(home)) => Ok(Some(PathBuf::from(home))),
        ("", None) => User::from_uid(Uid::current()).map(|user| user.map(|user| user.dir)),
        (name, _) => User::from_name(name).map(|user| user.map(|user| user.dir)),
    };
    match home {
        Ok(Some(home)) if below.is_empty() => Ok(home),
        Ok(Some(home)) => Ok(home.join(below.trim_start_matches('/'))),
        _ => Err(format!("'~{name}' is no user with a home directory; write the path in full")),
    }
}

pub(super) fn text(value: &OptionValue) -> Result<&str, String> {
    match value {
        OptionValue::Text(text) => Ok(text),
        _ => Err("it is not a string".into()),
    }
}

pub(super) fn one_of<'value>(
    value: &'value OptionValue,
    choices: &[&str],
) -> Result<&'value str, String> {
    let text = text(value)?;
    if choices.contains(&text) { Ok(text) } else { Err("it is not one of the choices".into()) }
}

pub(super) fn number(value: &OptionValue) -> Result<f64, String> {
    match value {
        OptionValue::Integer(integer) => Ok(*integer as f64),
        OptionValue::Float(float) => Ok(*float),
        OptionValue::Text(text) => text.trim().parse().map_err(|_| "it is not a number".into()),
        OptionValue::List(_)
        | OptionValue::Map(_)
        | OptionValue::Boolean(_)
        | OptionValue::Other(_) => Err("it is not a number".into()),
    }
}

/// Reads a number of bytes, such as "4096", "64KiB" or "1.5GB", the way every option that is a size does.
///
/// # Errors
/// Why it cannot be read.
pub fn size_bytes(text: &str) -> Result<u64, String> {
    match ByteSize::from_str(text) {
        Ok(size) => Ok(size.0),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}

pub(super) fn size_within(value: &OptionValue, least: u64, most: u64) -> Result<u64, String> {
    let size = match value {
        OptionValue::Integer(integer) => {
            u64::try_from(*integer).map_err(|_| "it is out of range".to_owned())?
        }
        OptionValue::Text(text) => size_bytes(text)?,
        OptionValue::Float(_)
        | OptionValue::List(_)
        | OptionValue::Map(_)
        | OptionValue::Boolean(_)
        | OptionValue::Other(_) => {
            return Err("it is not a whole number of bytes in range".into());
        }
    };
    if (least..=most).contains(&size) {
        Ok(size)
    } else {
        Err(format!("{size} is not within {least} to {most}"))
    }
}

/// A share of a whole, from 0 to 1.
pub(super) fn share_within(value: &OptionValue, least: f64, most: f64) -> Result<f64, String> {
    let share = number(value)?;
    if (least..=most).contains(&share) {
        Ok(share)
    } else {
        Err(format!("{share} is not within {least} to {most}"))
    }
}

/// A length of time: a number of seconds, or a string such as '7d' or '1h 30m'.
pub(super) fn duration_within(
    value: &OptionValue,
    least: Duration,
    most: Duration,
) -> Result<Duration, String> {
    let duration = match value {
        OptionValue::Text(text) if text.trim().parse::<f64>().is_err() => {
            humantime::parse_duration(text)
                .map_err(|error| format!("it cannot be read: {error}"))?
        }
        _ => Duration::try_from_secs_f64(number(value)?)
            .map_err(|error| format!("it cannot be read: {error}"))?,
    };
    if (least..=most).contains(&duration) { Ok(duration) } else { Err("it is out of range".into()) }
}

/// A truth value, or its word.
pub(super) fn truth(value: &OptionValue) -> Result<bool, String> {
    match value {
        OptionValue::Boolean(truth) => Ok(*truth),
        OptionValue::Text(text) => text.parse().map_err(|_| "it is not a truth value".into()),
        _ => Err("it is not a truth value".into()),
    }
}

/// Whether `value` is this very word.
pub(super) fn is_word(value: &OptionValue, word: &str) -> bool {
    matches!(value, OptionValue::Text(text) if text == word)
}

/// Sizes in bytes by name.
pub(super) fn sizes_by_name(
    value: &OptionValue,
    least: u64,
    most: u64,
) -> Result<Vec<(String, u64)>, String> {
    let OptionValue::Map(values) = value else {
        return Err("it is not a mapping of names to sizes".into());
    };
    let size = |(name, value): &(String, OptionValue)| {
        let size =
            size_within(value, least, most).map_err(|reason| format!("'{name}': {reason}"))?;
        Ok((name.clone(), size))
    };
    values.iter().map(size).collect()
}
