//! Reads what `kvspec vectors` writes, and has each conversation with a manager of its own.
//! `answer` makes the call of a message and returns the protocol's answer to it.

use crate::json::{write, Reader, Value};
use std::{fs, path::Path};

/// Equal, whatever the order of members.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(_)) => {
            a.iter().all(|(name, value)| b.get(name).is_some_and(|other| same(value, other)))
                && matches!(b, Value::Object(b) if a.len() == b.len())
        }
        (Value::List(a), Value::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(x, y)| same(x, y)),
        _ => a == b,
    }
}

/// Whether all that is wanted is offered; nothing is wanted where nothing is said.
fn has(offered: Option<&Value>, wanted: Option<&Value>) -> bool {
    let offered = offered.and_then(Value::list).unwrap_or(&[]);
    wanted.and_then(Value::list).unwrap_or(&[]).iter().all(|name| offered.contains(name))
}

fn lines(path: &Path) -> Result<Vec<Value>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    text.lines().map(Reader::document).collect()
}

/// One conversation: how many answers were right, None for a manager that lacks what it needs.
fn follow(folder: &Path, entry: &Value, answer: &mut impl FnMut(&Value) -> Value) -> Result<Option<usize>, String> {
    let file = entry.get("file").and_then(Value::text).ok_or("an entry without a file")?;
    let (mut right, mut offered) = (0, Value::Null);
    for (number, line) in lines(&folder.join(file))?.iter().enumerate() {
        if !has(offered.get("features"), line.get("needs")) {
            continue;
        }
        let given = answer(line.get("message").ok_or("a line without a message")?);
        if number == 0 {
            offered = given.get("result").cloned().ok_or("no answer to hello")?;
            let needs = ["spec_types", "hash_functions", "features"];
            if !needs.iter().all(|name| has(offered.get(name), entry.get(name))) {
                return Ok(None);
            }
        }
        let class = given.get("error").and_then(|error| error.get("class"));
        let is_right = match (line.get("result"), line.get("errors").and_then(Value::list)) {
            (Some(result), _) => given.get("result").is_some_and(|found| same(found, result)),
            (None, Some(errors)) => class.is_some_and(|name| errors.contains(name)),
            (None, None) => class.is_none(),
        };
        if !is_right {
            let (mut expected, mut observed) = (String::new(), String::new());
            write(line, &mut expected);
            write(&given, &mut observed);
            return Err(format!("{file}, line {}:\n  expected {expected}\n  observed {observed}", number + 1));
        }
        right += 1;
    }
    Ok(Some(right))
}

/// All of a folder: conversations followed, left out, and right answers. The first wrong one is an error.
pub fn follow_all<A: FnMut(&Value) -> Value>(
    folder: &Path, make: impl Fn() -> A,
) -> Result<(usize, usize, usize), String> {
    let index = lines(&folder.join("index.jsonl"))?;
    if index.first().and_then(|head| head.get("version")) != Some(&Value::Int(1)) {
        return Err("not version 1 of the format".into());
    }
    let mut done = (0, 0, 0);
    for entry in &index[1..] {
        match follow(folder, entry, &mut make())? {
            Some(right) => done = (done.0 + 1, done.1, done.2 + right),
            None => done.1 += 1,
        }
    }
    Ok(done)
}
