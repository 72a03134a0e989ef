//! Kinds of values that options take. Each reads a value, and prints its bounds from the same numbers.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::{Uid, User};

use super::nearest::nearest;
use super::values::{OptionValue, number, parse_size, size_text, text, whole, within, wrong_kind};
use crate::key::Identity;

type Read<T> = dyn Fn(&OptionValue) -> Result<T, String>;
type Show<T> = dyn Fn(&T) -> String;

pub(super) struct Kind<T> {
    /// Reads a value, or says why it does not fit.
    pub(super) read: Box<Read<T>>,
    /// The values that fit.
    pub(super) range: String,
    /// A value as it would be given.
    pub(super) show: Box<Show<T>>,
}

impl<T> Kind<T> {
    fn new(
        range: String,
        read: impl Fn(&OptionValue) -> Result<T, String> + 'static,
        show: impl Fn(&T) -> String + 'static,
    ) -> Self {
        Self { read: Box::new(read), range, show: Box::new(show) }
    }
}

/// A whole number, from one to another.
pub(super) fn count<T: TryFrom<u64> + Display + 'static>(least: u64, most: u64) -> Kind<T> {
    let read = move |value: &OptionValue| {
        let count = whole(value, "a whole number")?;
        let count = within(count, least, most, |count| count.to_string())?;
        T::try_from(count).map_err(|_| format!("{count} is too much"))
    };
    Kind::new(format!("{least} to {most}"), read, T::to_string)
}

/// A number of bytes, or a string such as '500GiB'.
pub(super) fn size(least: u64, most: u64) -> Kind<u64> {
    let read = move |value: &OptionValue| {
        let size = match value {
            OptionValue::Text(text) => parse_size(text)?,
            _ => whole(value, "a whole number of bytes")?,
        };
        within(size, least, most, size_text)
    };
    let range = format!("a size such as '500GiB' {}", sizes_text(least, most));
    Kind::new(range, read, |size| size_text((*size).into()).replace(' ', ""))
}

fn sizes_text(least: u64, most: u64) -> String {
    format!("from {} to {}", size_text(least.into()), size_text(most.into()))
}

/// A length of time: a number of seconds, or a string such as '7d' or '1h 30m'.
pub(super) fn time(least: Duration, most: Duration) -> Kind<Duration> {
    let read = move |value: &OptionValue| {
        let duration = match value {
            OptionValue::Text(text) if text.trim().parse::<f64>().is_err() => {
                humantime::parse_duration(text).map_err(|error| error.to_string())
            }
            _ => Duration::try_from_secs_f64(number(value)?).map_err(|error| error.to_string()),
        };
        match duration {
            Ok(duration) if (least..=most).contains(&duration) => Ok(duration),
            Ok(_) => Err("it is out of range".into()),
            Err(error) => Err(format!("it cannot be read: {error}")),
        }
    };
    let [least, most] = [least, most].map(|bound| time_text(&bound));
    let range = format!("seconds, or a string such as '7d' or '1h 30m', from {least} to {most}");
    Kind::new(range, read, time_text)
}

/// A length of time in the largest unit that it is a multiple of.
fn time_text(duration: &Duration) -> String {
    let seconds = duration.as_secs();
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let fits = units.into_iter().find(|(_, factor)| seconds.is_multiple_of(*factor));
    fits.map_or_else(String::new, |(unit, factor)| format!("{}{unit}", seconds / factor))
}

/// One of some values, which have names.
pub(super) fn one_of<T: Copy>(values: &'static [T], name: fn(T) -> &'static str) -> Kind<T> {
    let names = move || values.iter().map(move |value| name(*value));
    let read = move |value: &OptionValue| {
        let text = text(value)?;
        let found = values.iter().copied().find(|value| name(*value) == text);
        found.ok_or_else(|| {
            let nearest = nearest(text, names());
            let hint = nearest.map(|nearest| format!("; did you mean '{nearest}'?"));
            format!("it is not one of the choices{}", hint.unwrap_or_default())
        })
    };
    let quoted: Vec<_> = names().map(|name| format!("'{name}'")).collect();
    let (last, others) = quoted.split_last().expect("an enum has values");
    let range = format!("{} or {last}", others.join(", "));
    Kind::new(range, read, move |value| name(*value).into())
}

/// A path of a kind. As in a shell, `~` at its beginning is the home directory of this user and `~name` that of another.
pub(super) fn path_name(kind: &str) -> Kind<PathBuf> {
    let read = |value: &OptionValue| {
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
    };
    let range = format!("{kind} ('~' is the home directory)");
    Kind::new(range, read, |path: &PathBuf| path.display().to_string())
}

/// A name of an engine.
pub(super) fn identity() -> Kind<Identity> {
    let read = |value: &OptionValue| {
        let name = text(value)?;
        Identity::named(name)
            .ok_or_else(|| "it is empty, too long, or has other characters".to_owned())
    };
    let range = format!("1 to {} of the characters A-Z a-z 0-9 . _ -", Identity::MAX_BYTES);
    Kind::new(range, read, |identity| identity.name().to_owned())
}

pub(super) fn sizes_by_name(least: u64, most: u64) -> Kind<Vec<(String, u64)>> {
    let size = size(least, most);
    let read = move |value: &OptionValue| {
        let OptionValue::Map(values) = value else {
            return Err(wrong_kind(value, "a mapping of names to sizes"));
        };
        let size = |(name, value): &(String, OptionValue)| {
            let size = (size.read)(value).map_err(|reason| format!("'{name}': {reason}"))?;
            Ok((name.clone(), size))
        };
        values.iter().map(size).collect()
    };
    let sizes = sizes_text(least, most);
    let range = format!("a mapping such as {{'model@salt': '10GiB'}}, each {sizes}");
    Kind::new(range, read, |sizes| format!("{sizes:?}"))
}

/// A value, or several of them up to a number.
pub(super) fn list<T: 'static>(kind: Kind<T>, most: usize) -> Kind<Vec<T>> {
    let Kind { read, range, show } = kind;
    let read_all = move |value: &OptionValue| {
        let values = match value {
            OptionValue::List(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        match values.len() {
            0 => Err("it is empty".into()),
            count if count > most => Err(format!("{count} are too many")),
            _ => values.iter().map(&read).collect(),
        }
    };
    let show_all = move |values: &Vec<T>| values.iter().map(&show).collect::<Vec<_>>().join(", ");
    Kind::new(format!("{range}, or a list of up to {most} of these"), read_all, show_all)
}

/// A word that stands for a value, or another value.
pub(super) fn or<T: PartialEq + 'static>(
    word: &'static str,
    meant: fn() -> T,
    kind: Kind<T>,
) -> Kind<T> {
    let Kind { read, range, show } = kind;
    let read = move |value: &OptionValue| match value {
        OptionValue::Text(text) if text == word => Ok(meant()),
        value => read(value),
    };
    let show = move |value: &T| if *value == meant() { word.into() } else { show(value) };
    Kind::new(format!("'{word}' or {range}"), read, show)
}

/// A word that stands for none, or a value.
pub(super) fn or_none<T: PartialEq + 'static>(
    word: &'static str,
    kind: Kind<T>,
) -> Kind<Option<T>> {
    let Kind { read, range, show } = kind;
    let show = move |value: &Option<T>| value.as_ref().map_or_else(String::new, &show);
    or(word, || None, Kind::new(range, move |value| read(value).map(Some), show))
}
