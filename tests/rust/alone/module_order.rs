//! Modules of the core know only those before them in the list of src/lib.rs, and files inside a module do not know each
//! other in circles. Both are read from the paths in the source; what tests use does not count. No file is too long to read, and none is dead.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module by its path below the crate.
type Module = Vec<String>;

#[derive(Default)]
struct Source {
    /// The code of each module, without tests.
    code: BTreeMap<Module, String>,
    /// What is exported under another path: where, and what it is.
    exports: BTreeMap<Module, Module>,
}

impl Source {
    fn read() -> Self {
        let mut source = Self::default();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        source.read_directory(&root, &[]);
        let modules: Vec<Module> = source.code.keys().cloned().collect();
        for module in modules {
            for (path, is_export) in source.paths(&module) {
                if is_export {
                    let name = [&module[..], &path[path.len() - 1..]].concat();
                    source.exports.insert(name, path);
                }
            }
        }
        source
    }

    fn read_directory(&mut self, directory: &Path, module: &[String]) {
        for entry in directory.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let inner = [module, std::slice::from_ref(&name)].concat();
            match name.as_str() {
                "tests" => {}
                _ if path.is_dir() => self.read_directory(&path, &inner),
                "mod" | "lib" => drop(self.code.insert(module.to_vec(), code_of(&path))),
                _ => drop(self.code.insert(inner, code_of(&path))),
            }
        }
    }

    /// The paths in the code of a module, and whether each is exported under its last name.
    fn paths(&self, module: &[String]) -> Vec<(Module, bool)> {
        let code = &self.code[module];
        let mut paths = Vec::new();
        for (at, _) in code.match_indices("::") {
            let first = code[..at].rsplit(|letter| !is_in_name(letter)).next().unwrap();
            let start = at - first.len();
            if code[..start].ends_with("::") {
                continue;
            }
            let mut found = Vec::new();
            expand(&code[start..], Vec::new(), &mut found);
            let statement = code[..start].rsplit([';', '}']).next().unwrap().trim();
            let is_export = statement.starts_with("pub") && statement.ends_with("use");
            let absolute = found.into_iter().filter_map(|path| self.absolute(module, path));
            paths.extend(absolute.map(|path| (path, is_export)));
        }
        paths
    }

    /// The path from the crate on; none for one that leads elsewhere.
    fn absolute(&self, module: &[String], path: Module) -> Option<Module> {
        let ups = path.iter().take_while(|name| *name == "super").count();
        let child = [module, &path[..1]].concat();
        match path[0].as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([module, &path[1..]].concat()),
            "super" => Some([&module[..module.len().checked_sub(ups)?], &path[ups..]].concat()),
            _ => self.code.contains_key(&child).then(|| [module, &path].concat()),
        }
    }

    /// The module that a path leads into, through exports.
    fn module_of(&self, path: &[String]) -> Module {
        for length in 0..=path.len() {
            if let Some(target) = self.exports.get(&path[..length]) {
                return self.module_of(&[target, &path[length..]].concat());
            }
            if !self.code.contains_key(&path[..length]) {
                return path[..length - 1].to_vec();
            }
        }
        path.to_vec()
    }

    /// The modules that each one uses.
    fn uses(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let uses = |module: &Module| {
            let paths = self.paths(module).into_iter();
            let used = paths.filter(|(_, is_export)| !is_export);
            used.map(|(path, _)| self.module_of(&path)).filter(|other| other != module).collect()
        };
        self.code.keys().map(|module| (module.clone(), uses(module))).collect()
    }
}

/// A file without comments and what only tests have.
fn code_of(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let mut code = String::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            code += line;
            code.push('\n');
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let item = lines.find(|line| line.ends_with(['{', ';'])).unwrap();
        if item.ends_with('{') {
            lines.find(|line| *line == format!("{indent}}}")).unwrap();
        }
    }
    code
}

fn is_in_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The paths that a tree such as `a::{b, c::d}` stands for. Returns what is behind it.
fn expand<'a>(text: &'a str, before: Module, paths: &mut Vec<Module>) -> &'a str {
    let length = text.find(|letter| !is_in_name(letter)).unwrap_or(text.len());
    let (name, rest) = text.split_at(length);
    let path = [before, vec![name.to_owned()]].concat();
    let Some(rest) = rest.strip_prefix("::") else {
        paths.push(path);
        return rest;
    };
    let Some(mut rest) = rest.strip_prefix('{') else {
        return match rest.starts_with(is_in_name) {
            true => expand(rest, path, paths),
            false => {
                paths.push([path, vec!["*".to_owned()]].concat());
                &rest[1..]
            }
        };
    };
    loop {
        rest = rest.trim_start_matches([',', ' ', '\n']);
        if let Some(behind) = rest.strip_prefix('}') {
            return behind;
        }
        rest = expand(rest, path.clone(), paths);
        rest = rest.trim_start_matches(|letter| !matches!(letter, ',' | '}'));
    }
}

fn name(module: &[String]) -> String {
    module.join("::")
}

#[test]
fn modules_know_only_those_before_them() {
    let source = Source::read();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let root = std::fs::read_to_string(root).unwrap();
    let listed: Vec<&str> = root
        .lines()
        .filter_map(|line| Some(line.strip_prefix("// - ")?.split_once(": ")?.0))
        .flat_map(|names| names.split(", "))
        .map(|name| name.trim_matches('`'))
        .collect();
    let there: BTreeSet<&str> =
        source.code.keys().filter_map(|module| Some(module.first()?.as_str())).collect();
    assert_eq!(
        listed.iter().copied().collect::<BTreeSet<_>>(),
        there,
        "src/lib.rs lists each module"
    );
    let position = |name: &str| listed.iter().position(|listed| *listed == name);
    let mut broken = BTreeSet::new();
    for (module, used) in source.uses() {
        let Some(own) = module.first() else { continue };
        for other in used {
            if other.first().is_some_and(|other| position(other) > position(own)) {
                broken.insert(format!("{} uses {}", name(&module), name(&other)));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.into_iter().collect::<Vec<_>>().join("\n"));
}

/// A file uses those that paths in its code lead into, through re-exports. What a file only declares or re-exports it does not use,
/// so a `mod.rs` is in a circle with a file of its folder only if its own code needs that one.
#[test]
fn no_files_know_each_other_in_a_circle() {
    let mut reached = Source::read().uses();
    // Circles are inside one module: the order of modules sees to the rest.
    reached
        .iter_mut()
        .for_each(|(module, used)| used.retain(|other| other.first() == module.first()));
    loop {
        let before = reached.clone();
        for used in reached.values_mut() {
            let further = used.iter().flat_map(|other| before[other].iter().cloned());
            let further: Vec<Module> = further.collect();
            used.extend(further);
        }
        if reached == before {
            break;
        }
    }
    let mut circles = BTreeSet::new();
    for (module, used) in reached.iter().filter(|(module, used)| used.contains(*module)) {
        let circle = used.iter().filter(|other| reached[*other].contains(module));
        let names: Vec<String> = circle.map(|module| name(module)).collect();
        circles.insert(names.join(", "));
    }
    let circles: Vec<String> = circles.into_iter().collect();
    assert!(circles.is_empty(), "these files know each other:\n{}", circles.join("\n"));
}

/// The compiler passes by a file that no other one declares, and so do all tests.
#[test]
fn every_file_is_declared() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    add_files(&root, &mut files);
    let code: String = files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let declared: BTreeSet<&str> =
        code.lines().filter_map(|line| line.split("mod ").nth(1)?.strip_suffix(';')).collect();
    files.retain(|path| {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        !["lib", "mod"].contains(&stem) && !declared.contains(stem)
    });
    assert!(files.is_empty(), "{files:#?}");
}

const MOST_LINES: usize = 400;

#[test]
fn no_file_is_longer_than_400_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "connector_py", "tests", "tools", "benches", "examples", "loadgen"] {
        add_files(&root.join(folder), &mut files);
    }
    files.retain(|path| std::fs::read_to_string(path).unwrap().lines().count() > MOST_LINES);
    assert!(files.is_empty(), "{files:#?}");
}

fn add_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let is_code = path.extension().is_some_and(|kind| kind == "rs" || kind == "py");
        if path.is_dir() {
            add_files(&path, files);
        } else if is_code {
            files.push(path);
        }
    }
}
