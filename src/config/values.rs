//! Values as callers give them, and how they are read.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::Unit;
use nix::unistd::{Uid, User};

use super::nearest::nearest;

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
        _ => Err(wrong_kind(value, "a string")),
    }
}

/// That a value is not what is `wanted`.
fn wrong_kind(value: &OptionValue, wanted: &str) -> String {
    let kind = match value {
        OptionValue::Boolean(_) => "a truth value",
        OptionValue::Integer(_) | OptionValue::Float(_) => "a number",
        OptionValue::Text(_) => "a string",
        OptionValue::List(_) => "a list",
        OptionValue::Map(_) => "a mapping",
        OptionValue::Other(_) => return format!("it is not {wanted}"),
    };
    format!("it is {kind}, not {wanted}")
}

pub(super) fn one_of<'value>(
    value: &'value OptionValue,
    choices: &[&str],
) -> Result<&'value str, String> {
    let text = text(value)?;
    if choices.contains(&text) {
        return Ok(text);
    }
    Err(match nearest(text, choices.iter().copied()) {
        Some(nearest) => format!("it is not one of the choices; did you mean '{nearest}'?"),
        None => "it is not one of the choices".into(),
    })
}

pub(super) fn number(value: &OptionValue) -> Result<f64, String> {
    match value {
        OptionValue::Integer(integer) => Ok(*integer as f64),
        OptionValue::Float(float) => Ok(*float),
        OptionValue::Text(text) => text.trim().parse().map_err(|_| "it is not a number".into()),
        _ => Err(wrong_kind(value, "a number")),
    }
}

/// A whole number, however it is written: 4, 4.0 and '4' are the same.
fn whole(value: &OptionValue, wanted: &str) -> Result<i128, String> {
    match value {
        OptionValue::Integer(integer) => Ok(*integer),
        OptionValue::Float(float) if float.is_finite() && float.fract() == 0.0 => {
            Ok(*float as i128)
        }
        OptionValue::Float(_) => Err(format!("it is not {wanted}")),
        OptionValue::Text(text) => match text.trim().parse() {
            Ok(integer) => Ok(integer),
            Err(_) => Err(format!("it is not {wanted}")),
        },
        _ => Err(wrong_kind(value, wanted)),
    }
}

/// A number of things that are no bytes.
pub(super) fn count_within(value: &OptionValue, least: u64, most: u64) -> Result<u64, String> {
    within(whole(value, "a whole number")?, least, most, |count| count.to_string())
}

/// A number of bytes, or a string such as '500GiB'.
pub(super) fn size_within(value: &OptionValue, least: u64, most: u64) -> Result<u64, String> {
    let size = match value {
        OptionValue::Text(text) => parse_size(text)?,
        _ => whole(value, "a whole number of bytes")?,
    };
    within(size, least, most, size_text)
}

fn within(
    number: i128,
    least: u64,
    most: u64,
    text: impl Fn(i128) -> String,
) -> Result<u64, String> {
    match u64::try_from(number) {
        Ok(fits) if (least..=most).contains(&fits) => Ok(fits),
        _ if number < i128::from(least) => {
            Err(format!("{} is less than {}", text(number), text(least.into())))
        }
        _ => Err(format!("{} is more than {}", text(number), text(most.into()))),
    }
}

/// A number of bytes in the largest unit that it is a multiple of.
fn size_text(bytes: i128) -> String {
    let units = ["PiB", "TiB", "GiB", "MiB", "KiB"];
    let factors = (1..=units.len() as u32).rev().map(|power| 1024_i128.pow(power));
    match units.into_iter().zip(factors).find(|(_, factor)| bytes != 0 && bytes % factor == 0) {
        Some((unit, factor)) => format!("{} {unit}", bytes / factor),
        None => format!("{bytes} bytes"),
    }
}

/// Reads a number of bytes, such as "4096", "64KiB" or "1.5GB", the way every option that is a size does.
///
/// # Errors
/// Why it cannot be read.
pub fn size_bytes(text: &str) -> Result<u64, String> {
    within(parse_size(text)?, 0, u64::MAX, size_text)
}

fn parse_size(text: &str) -> Result<i128, String> {
    let text = text.trim();
    let wrong = |what: String| format!("{what}; a size is a number and a unit, such as '500GiB'");
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    if text.starts_with('-') {
        return Err(wrong("a size is not negative".into()));
    }
    let (number, factor) = match text.parse::<f64>() {
        // 1.5e9 as well.
        Ok(number) if number.is_finite() => (text, 1),
        _ => {
            let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
            let (number, unit) = text.split_at(end.unwrap_or(text.len()));
            if number.is_empty() {
                return Err(wrong("it does not begin with a number".into()));
            }
            let unit = unit.trim_start();
            let factor = unit.parse::<Unit>().map_err(|_| {
                wrong(format!(
                    "'{unit}' is no unit, which are B, KiB, MiB, GiB, TiB, PiB, kB, MB, GB, TB and PB"
                ))
            })?;
            (number, factor * 1_u64)
        }
    };
    if let Ok(whole) = number.parse::<u64>() {
        return Ok(i128::from(whole) * i128::from(factor));
    }
    let number: f64 = number.parse().map_err(|_| wrong(format!("'{number}' is no number")))?;
    match factor {
        1 if number.fract() != 0.0 => Err("a number of bytes is a whole one".into()),
        _ => Ok((number * factor as f64) as i128),
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
        _ => Err(wrong_kind(value, "a truth value")),
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
        return Err(wrong_kind(value, "a mapping of names to sizes"));
    };
    let size = |(name, value): &(String, OptionValue)| {
        let size =
            size_within(value, least, most).map_err(|reason| format!("'{name}': {reason}"))?;
        Ok((name.clone(), size))
    };
    values.iter().map(size).collect()
}
