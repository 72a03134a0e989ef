//! Values as callers give them, and how each kind of option reads one: the value, or why it does not fit.

use std::fmt::{Display, Formatter};
use std::path::PathBuf;
use std::time::Duration;

use bytesize::Unit;
use nix::unistd::{Uid, User};

use crate::key::Identity;

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

impl Display for OptionValue {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        let joined = |values: Vec<String>| values.join(", ");
        match self {
            Self::Integer(value) => write!(formatter, "{value}"),
            Self::Float(value) => write!(formatter, "{value}"),
            Self::Text(value) => write!(formatter, "'{value}'"),
            Self::List(values) => {
                write!(formatter, "[{}]", joined(values.iter().map(Self::to_string).collect()))
            }
            Self::Map(values) => {
                let one = |(name, value): &(String, Self)| format!("'{name}': {value}");
                write!(formatter, "{{{}}}", joined(values.iter().map(one).collect()))
            }
            Self::Boolean(value) => write!(formatter, "{value}"),
            Self::Other(value) => write!(formatter, "{value}"),
        }
    }
}

fn text(value: &OptionValue) -> Result<&str, String> {
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

fn number(value: &OptionValue) -> Result<f64, String> {
    match value {
        OptionValue::Integer(integer) => Ok(*integer as f64),
        OptionValue::Float(float) => Ok(*float),
        OptionValue::Text(text) => text.trim().parse().map_err(|_| "it is not a number".into()),
        _ => Err(wrong_kind(value, "a number")),
    }
}

/// A whole number, however it is written: 4, 4.0 and '4' are the same.
fn whole(value: &OptionValue, wanted: &str) -> Result<i128, String> {
    let wrong = || format!("it is not {wanted}");
    match value {
        OptionValue::Integer(integer) => Ok(*integer),
        OptionValue::Float(float) if float.is_finite() && float.fract() == 0.0 => {
            Ok(*float as i128)
        }
        OptionValue::Float(_) => Err(wrong()),
        OptionValue::Text(text) => text.trim().parse().map_err(|_| wrong()),
        _ => Err(wrong_kind(value, wanted)),
    }
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

/// A whole number, from one to another.
pub(super) fn count<T: TryFrom<u64>>(
    value: &OptionValue,
    least: u64,
    most: u64,
) -> Result<T, String> {
    let count = within(whole(value, "a whole number")?, least, most, |count| count.to_string())?;
    T::try_from(count).map_err(|_| format!("{count} is too much"))
}

/// A number of bytes, or a string such as '500GiB'.
pub(super) fn size(value: &OptionValue, least: u64, most: u64) -> Result<u64, String> {
    let size = match value {
        OptionValue::Text(text) => parse_size(text)?,
        _ => whole(value, "a whole number of bytes")?,
    };
    within(size, least, most, size_text)
}

/// A length of time: a number of seconds, or a string such as '7d' or '1h 30m'.
pub(super) fn time(
    value: &OptionValue,
    least: Duration,
    most: Duration,
) -> Result<Duration, String> {
    let negative = || Err("a length of time is not negative".into());
    let duration = match value {
        OptionValue::Text(text) if text.trim().starts_with('-') => return negative(),
        OptionValue::Text(text) if text.trim().parse::<f64>().is_err() => {
            humantime::parse_duration(text).map_err(|error| error.to_string())
        }
        _ => match number(value)? {
            seconds if seconds < 0.0 => return negative(),
            seconds if seconds.is_nan() => return Err("it is not a number".into()),
            // Too long for a Duration is too long for any option.
            seconds => Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
        },
    };
    match duration {
        Ok(duration) if (least..=most).contains(&duration) => Ok(duration),
        Ok(_) => Err("it is out of range".into()),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}

/// One of some values, which have names.
pub(super) fn one_of<T: Copy>(
    value: &OptionValue,
    values: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, String> {
    let text = text(value)?;
    let found = values.iter().copied().find(|value| name(*value) == text);
    found.ok_or_else(|| "it is not one of the choices".to_owned())
}

/// A path. As in a shell, `~` at its beginning is the home directory of this user and `~name` that of another.
pub(super) fn path_name(value: &OptionValue) -> Result<PathBuf, String> {
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

/// A name of an engine.
pub(super) fn identity(value: &OptionValue) -> Result<Identity, String> {
    Identity::named(text(value)?)
        .ok_or_else(|| "it is empty, too long, or has other characters".to_owned())
}

pub(super) fn sizes_by_name(
    value: &OptionValue,
    least: u64,
    most: u64,
) -> Result<Vec<(String, u64)>, String> {
    let OptionValue::Map(values) = value else {
        return Err(wrong_kind(value, "a mapping of names to sizes"));
    };
    let size = |(name, value): &(String, OptionValue)| {
        let size = size(value, least, most).map_err(|reason| format!("'{name}': {reason}"))?;
        Ok((name.clone(), size))
    };
    values.iter().map(size).collect()
}

/// A value, or several of them up to a number.
pub(super) fn list<T>(
    value: &OptionValue,
    most: usize,
    read: impl Fn(&OptionValue) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let values = match value {
        OptionValue::List(values) => values.as_slice(),
        one => std::slice::from_ref(one),
    };
    match values.len() {
        0 => Err("it is empty".into()),
        count if count > most => Err(format!("{count} are too many")),
        _ => values.iter().map(read).collect(),
    }
}

/// A word that stands for a value, or another value.
pub(super) fn or<T>(
    value: &OptionValue,
    word: &str,
    meant: T,
    read: impl Fn(&OptionValue) -> Result<T, String>,
) -> Result<T, String> {
    match value {
        OptionValue::Text(text) if text == word => Ok(meant),
        value => read(value),
    }
}

/// A word that stands for none, or a value.
pub(super) fn or_none<T>(
    value: &OptionValue,
    word: &str,
    read: impl Fn(&OptionValue) -> Result<T, String>,
) -> Result<Option<T>, String> {
    or(value, word, None, |value| read(value).map(Some))
}
