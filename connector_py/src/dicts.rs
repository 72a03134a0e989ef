//! Fields of a struct as a dict of Python.

/// A dict with fields of `$from`, each under its own name.
macro_rules! dict_of {
    ($py:ident, $from:ident: $($field:ident)+) => {{
        let all = pyo3::types::PyDict::new($py);
        $(all.set_item(stringify!($field), &$from.$field)?;)+
        all
    }};
}

pub(crate) use dict_of;
