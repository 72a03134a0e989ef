//! Text that somebody gives: keys, names of engines, options and their values. Whatever it is, it is taken or refused by name.

use kvring::testing::namespace_of;
use kvring::{Config, Identity, OPTIONS, OptionValue, size_bytes};

use crate::input::Input;

fn value(input: &mut Input, depth: usize) -> OptionValue {
    match input.choose(&[0, 0, 0, 1, 2, 3, 4, 5]) {
        1 => OptionValue::Integer(i128::from(input.value()) - i128::from(input.number::<1>())),
        2 => OptionValue::Float(f64::from_bits(input.value())),
        3 if depth > 0 => {
            let count = input.below(4);
            OptionValue::List((0..count).map(|_| value(input, depth - 1)).collect())
        }
        4 if depth > 0 => {
            let count = input.below(4);
            let one = |_| (input.text(24), value(input, depth - 1));
            OptionValue::Map((0..count).map(one).collect())
        }
        5 => OptionValue::Boolean(input.is_so()),
        _ => OptionValue::Text(input.text(40)),
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let key = input.text(200);
    let namespace = namespace_of(&key);
    assert!(key.starts_with(namespace.split('@').next().unwrap()), "{key:?}: {namespace:?}");
    if let Some(identity) = Identity::named(&input.text(80)) {
        assert!((1..=Identity::MAX_BYTES).contains(&identity.name().len()));
    }
    let text = input.text(40);
    match size_bytes(&text) {
        Ok(bytes) => assert_eq!(size_bytes(&bytes.to_string()), Ok(bytes)),
        Err(reason) => assert!(!reason.is_empty()),
    }
    while !input.is_empty() {
        let name = match input.below(OPTIONS.len() + 1) {
            known if known < OPTIONS.len() => OPTIONS[known].name.to_owned(),
            _ => input.text(20),
        };
        let given = value(&mut input, 2);
        let options = [
            ("path".to_owned(), OptionValue::Text("/store".into())),
            ("capacity".to_owned(), OptionValue::Integer(1 << 30)),
            (name.clone(), given.clone()),
        ];
        match Config::from_options(options) {
            // It is shown as it would be given.
            Ok(config) => {
                let spec = OPTIONS.iter().find(|spec| spec.name == name).expect("a known name");
                assert!(!format!("{config:?}{}", spec.meaning).is_empty());
            }
            Err(error) => {
                let message = error.to_string();
                assert!(message.contains(&name), "{message} does not name {name:?}");
                let names_value = message.contains(&given.to_string());
                assert!(
                    names_value || !message.contains("is not valid"),
                    "{message} does not name {given}"
                );
            }
        }
    }
}
