//! Kinds of values that options take. Each reads a value, and prints its bounds from the same numbers.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::{Uid, User};

use super::nearest::nearest;
use super::values::{OptionValue, number, parse_size, size_text, text, whole, within, wrong_kind};

pub(super) trait Takes<T> {
    /// Reads a value, or says why it does not fit.
    fn read(&self, value: &OptionValue) -> Result<T, String>;
    /// The values that fit.
    fn range(&self) -> String;
    /// A value as it would be given.
    fn show(&self, value: &T) -> String;
}

/// A whole number, from one to another.
pub(super) struct Count(pub(super) u64, pub(super) u64);
/// A number of bytes, or a string such as '500GiB'.
pub(super) struct Size(pub(super) u64, pub(super) u64);
/// A length of time: a number of seconds, or a string such as '7d' or '1h 30m'.
pub(super) struct Time(pub(super) Duration, pub(super) Duration);
/// One of some values, which have names.
pub(super) struct OneOf<T: 'static>(pub(super) &'static [T], pub(super) fn(T) -> &'static str);
/// A path of a kind. As in a shell, `~` at its beginning is the home directory of this user and `~name` that of another.
pub(super) struct PathName(pub(super) &'static str);
pub(super) struct SizesByName(pub(super) u64, pub(super) u64);
/// A value, or several of them up to a number.
pub(super) struct List<K>(pub(super) K, pub(super) usize);
/// A word that stands for a value, or another value.
pub(super) struct Or<T, K>(pub(super) &'static str, pub(super) fn() -> T, pub(super) K);
/// A word that stands for none, or a value.
pub(super) struct OrNone<K>(pub(super) &'static str, pub(super) K);

impl<T: TryFrom<u64> + Display> Takes<T> for Count {
    fn read(&self, value: &OptionValue) -> Result<T, String> {
        let count =
            within(whole(value, "a whole number")?, self.0, self.1, |count| count.to_string())?;
        T::try_from(count).map_err(|_| format!("{count} is too much"))
    }

    fn range(&self) -> String {
        format!("{} to {}", self.0, self.1)
    }

    fn show(&self, value: &T) -> String {
        value.to_string()
    }
}

impl Takes<u64> for Size {
    fn read(&self, value: &OptionValue) -> Result<u64, String> {
        let size = match value {
            OptionValue::Text(text) => parse_size(text)?,
            _ => whole(value, "a whole number of bytes")?,
        };
        within(size, self.0, self.1, size_text)
    }

    fn range(&self) -> String {
        let [least, most] = [self.0, self.1].map(|bytes| size_text(bytes.into()));
        format!("a size such as '500GiB' from {least} to {most}")
    }

    fn show(&self, value: &u64) -> String {
        size_text((*value).into()).replace(' ', "")
    }
}

impl Takes<Duration> for Time {
    fn read(&self, value: &OptionValue) -> Result<Duration, String> {
        let duration = match value {
            OptionValue::Text(text) if text.trim().parse::<f64>().is_err() => {
                humantime::parse_duration(text).map_err(|error| error.to_string())
            }
            _ => Duration::try_from_secs_f64(number(value)?).map_err(|error| error.to_string()),
        };
        match duration {
            Ok(duration) if (self.0..=self.1).contains(&duration) => Ok(duration),
            Ok(_) => Err("it is out of range".into()),
            Err(error) => Err(format!("it cannot be read: {error}")),
        }
    }

    fn range(&self) -> String {
        let [least, most] = [self.0, self.1].map(time_text);
        format!("seconds, or a string such as '7d' or '1h 30m', from {least} to {most}")
    }

    fn show(&self, value: &Duration) -> String {
        time_text(*value)
    }
}

impl<T: Copy> Takes<T> for OneOf<T> {
    fn read(&self, value: &OptionValue) -> Result<T, String> {
        let text = text(value)?;
        let found = self.0.iter().copied().find(|value| (self.1)(*value) == text);
        found.ok_or_else(|| {
            let nearest = nearest(text, self.0.iter().map(|value| (self.1)(*value)));
            let hint = nearest.map(|nearest| format!("; did you mean '{nearest}'?"));
            format!("it is not one of the choices{}", hint.unwrap_or_default())
        })
    }

    fn range(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|value| format!("'{}'", (self.1)(*value))).collect();
        let (last, others) = names.split_last().expect("an enum has values");
        format!("{} or {last}", others.join(", "))
    }

    fn show(&self, value: &T) -> String {
        (self.1)(*value).into()
    }
}

impl Takes<PathBuf> for PathName {
    fn read(&self, value: &OptionValue) -> Result<PathBuf, String> {
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

    fn range(&self) -> String {
        format!("{} ('~' is the home directory)", self.0)
    }

    fn show(&self, value: &PathBuf) -> String {
        value.display().to_string()
    }
}

impl Takes<Vec<(String, u64)>> for SizesByName {
    fn read(&self, value: &OptionValue) -> Result<Vec<(String, u64)>, String> {
        let OptionValue::Map(values) = value else {
            return Err(wrong_kind(value, "a mapping of names to sizes"));
        };
        let size = |(name, value): &(String, OptionValue)| {
            let size = Size(self.0, self.1).read(value);
            Ok((name.clone(), size.map_err(|reason| format!("'{name}': {reason}"))?))
        };
        values.iter().map(size).collect()
    }

    fn range(&self) -> String {
        let [least, most] = [self.0, self.1].map(|bytes| size_text(bytes.into()));
        format!("a mapping such as {{'model@salt': '10GiB'}}, each from {least} to {most}")
    }

    fn show(&self, value: &Vec<(String, u64)>) -> String {
        format!("{value:?}")
    }
}

impl<T, K: Takes<T>> Takes<Vec<T>> for List<K> {
    fn read(&self, value: &OptionValue) -> Result<Vec<T>, String> {
        let values = match value {
            OptionValue::List(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        match values.len() {
            0 => Err("it is empty".into()),
            count if count > self.1 => Err(format!("{count} are too many")),
            _ => values.iter().map(|value| self.0.read(value)).collect(),
        }
    }

    fn range(&self) -> String {
        format!("{}, or a list of up to {} of these", self.0.range(), self.1)
    }

    fn show(&self, value: &Vec<T>) -> String {
        value.iter().map(|value| self.0.show(value)).collect::<Vec<_>>().join(", ")
    }
}

impl<T: PartialEq, K: Takes<T>> Takes<T> for Or<T, K> {
    fn read(&self, value: &OptionValue) -> Result<T, String> {
        if *value == OptionValue::Text(self.0.into()) { Ok(self.1()) } else { self.2.read(value) }
    }

    fn range(&self) -> String {
        format!("'{}' or {}", self.0, self.2.range())
    }

    fn show(&self, value: &T) -> String {
        if *value == self.1() { self.0.into() } else { self.2.show(value) }
    }
}

impl<T, K: Takes<T>> Takes<Option<T>> for OrNone<K> {
    fn read(&self, value: &OptionValue) -> Result<Option<T>, String> {
        if *value == OptionValue::Text(self.0.into()) {
            Ok(None)
        } else {
            self.1.read(value).map(Some)
        }
    }

    fn range(&self) -> String {
        format!("'{}' or {}", self.0, self.1.range())
    }

    fn show(&self, value: &Option<T>) -> String {
        value.as_ref().map_or_else(|| self.0.into(), |value| self.1.show(value))
    }
}

/// A length of time in the largest unit that it is a multiple of.
fn time_text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let fits = units.into_iter().find(|(_, factor)| seconds.is_multiple_of(*factor));
    fits.map_or_else(String::new, |(unit, factor)| format!("{}{unit}", seconds / factor))
}
