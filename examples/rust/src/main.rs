//! A KV-cache manager for full attention and sliding windows, behind spec/protocol.md in JSON lines.

mod config;
mod json;
mod manager;
mod pool;
mod sha256;

use config::{broken, count, flag, invalid, member, Answer, Config, Refusal, NAME};
use json::{hex, ints, lists, object, write, Reader, Value};
use manager::{Manager, Request};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};

#[derive(Default)]
struct Server {
    greeted: bool,
    managers: BTreeMap<i64, Manager>,
    requests: BTreeMap<i64, Request>,
}

const FEATURES: [&str; 9] = [
    "prefix_caching", "multiple_groups", "eviction_by_id", "reset", "unhashed_blocks", "stable_lists",
    "new_block_ids", "skipped_removal", "snapshot",
];

fn texts(texts: &[&str]) -> Value {
    Value::List(texts.iter().map(|text| Value::Text(text.to_string())).collect())
}
fn handle(message: &Value, name: &str) -> Answer<i64> {
    let found = member(message, name)?.int();
    found.ok_or_else(|| broken("bad_message", format!("{name} is not an int")))
}
fn unused<T>(table: &BTreeMap<i64, T>, message: &Value, name: &str) -> Answer<i64> {
    let number = handle(message, name)?;
    if number < 1 || table.contains_key(&number) {
        return Err(broken("bad_message", format!("{name}: the handle is in use or below 1")));
    }
    Ok(number)
}
fn unknown(name: &str) -> Refusal {
    broken("unknown_handle", format!("no {name} with this handle"))
}

impl Server {
    fn perform(&mut self, message: &Value) -> Answer<Value> {
        let Value::Object(members) = message else { unreachable!("checked by the caller") };
        let known = ["id", "op", "manager", "request", "set", "args"];
        if let Some((name, _)) = members.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            return Err(broken("bad_message", format!("unknown member {name}")));
        }
        handle(message, "id")?;
        let op = member(message, "op")?.text().ok_or_else(|| broken("bad_message", "op is no text"))?;
        let empty = Value::Object(Vec::new());
        let args = message.get("args").unwrap_or(&empty);
        if !matches!(args, Value::Object(_)) {
            return Err(broken("bad_message", "args is not an object"));
        }
        if !self.greeted && op != "hello" {
            return Err(broken("bad_message", format!("{op} before hello")));
        }
        match op {
            "hello" => return self.hello(args),
            "create_manager" => return self.create(message, args),
            "make_request" => return self.make_request(message, args),
            "drop" => {
                let named = |name| args.get(name).and_then(Value::list).unwrap_or(&[]);
                for number in named("managers").iter().filter_map(Value::int) {
                    self.managers.remove(&number);
                }
                for number in named("requests").iter().filter_map(Value::int) {
                    self.requests.remove(&number);
                }
                return Ok(Value::Null);
            }
            _ => {}
        }
        self.set(message)?;
        let manager = self.managers.get_mut(&handle(message, "manager")?);
        let manager = manager.ok_or_else(|| unknown("manager"))?;
        if let Some(answer) = about_the_pool(manager, op, args) {
            return answer;
        }
        let request = self.requests.get_mut(&handle(message, "request")?);
        let request = request.ok_or_else(|| unknown("request"))?;
        manager.own(request)?;
        about_a_request(manager, request, op, args)
    }

    fn hello(&mut self, args: &Value) -> Answer<Value> {
        let offered = member(args, "protocol")?.list().unwrap_or(&[]);
        if !offered.contains(&Value::Int(1)) {
            return Err(broken("version", "this server speaks protocol 1"));
        }
        self.greeted = true;
        Ok(object([
            ("protocol", Value::Int(1)),
            ("name", Value::Text(NAME.into())),
            ("version", Value::Text("1".into())),
            ("spec_types", texts(&["FullAttentionSpec", "SlidingWindowSpec"])),
            ("hash_functions", texts(&["sha256_cbor"])),
            ("features", texts(&FEATURES)),
            ("edition", Value::Text("0.3".into())),
            ("extra_keys", texts(&["tagged", "plain"])), // it has none to be spelled
        ]))
    }

    fn create(&mut self, message: &Value, args: &Value) -> Answer<Value> {
        let number = unused(&self.managers, message, "manager")?;
        let config = Config::read(member(args, "config")?)?;
        let answer = object([
            ("scheduler_block_size", Value::Int(config.alignment)),
            ("hash_block_size", Value::Int(config.hash_size)),
            ("none_hash", hex(&config.none_hash)),
        ]);
        self.managers.insert(number, Manager::new(config));
        Ok(answer)
    }

    fn make_request(&mut self, message: &Value, args: &Value) -> Answer<Value> {
        let number = unused(&self.requests, message, "request")?;
        let manager = self.managers.get(&handle(message, "manager")?).ok_or_else(|| unknown("manager"))?;
        for name in ["cache_salt", "lora", "mm_features", "prompt_embeddings"] {
            if args.given(name).is_some_and(|value| *value != Value::List(Vec::new())) {
                return Err(config::unsupported(name));
            }
        }
        let skips = args.get("skip_reading_prefix_cache");
        if skips.map_or(Ok(false), |value| flag("skip_reading_prefix_cache", value))? {
            return Err(config::unsupported("skip_reading"));
        }
        let (id, prompt) = (member(args, "request_id")?, member(args, "prompt_token_ids")?);
        let name = id.text().filter(|text| !text.is_empty());
        let mut request = Request {
            id: name.ok_or_else(|| invalid("request_id", id, "a non-empty text"))?.to_string(),
            tokens: Vec::new(),
            hashes: Vec::new(),
            none_hash: manager.config.none_hash,
            hash_size: manager.config.caching.then_some(manager.config.hash_size),
            computed: Value::Int(0),
            preemptions: Value::Int(0),
            status: Value::Text("WAITING".into()),
        };
        request.append("prompt_token_ids", prompt)?;
        if request.tokens.is_empty() {
            return Err(invalid("prompt_token_ids", prompt, "at least one token"));
        }
        let answer = object([
            ("num_tokens", Value::Int(request.tokens.len() as i64)),
            ("block_hashes", Value::List(request.hashes.iter().map(|hash| hex(hash)).collect())),
        ]);
        self.requests.insert(number, request);
        Ok(answer)
    }

    /// What the scheduler owns is set before the call, and stays also if that fails.
    fn set(&mut self, message: &Value) -> Answer<()> {
        let Some(owned) = message.get("set") else { return Ok(()) };
        let Value::Object(members) = owned else {
            return Err(broken("bad_message", "set is not an object"));
        };
        let request = self.requests.get_mut(&handle(message, "request")?);
        let request = request.ok_or_else(|| unknown("request"))?;
        for (name, value) in members {
            match name.as_str() {
                "num_computed_tokens" => request.computed = value.clone(),
                "num_preemptions" => request.preemptions = value.clone(),
                "status" => request.status = value.clone(),
                _ => return Err(broken("bad_message", format!("unknown member set.{name}"))),
            }
        }
        Ok(())
    }
}

/// Messages that name no request; None: it is another one.
fn about_the_pool(manager: &mut Manager, op: &str, args: &Value) -> Option<Answer<Value>> {
    Some(Ok(match op {
        "get_usage" => usage(manager),
        "snapshot" => snapshot(manager),
        "take_events" | "take_residency_samples" => Value::List(Vec::new()),
        "take_new_block_ids" => {
            let taken: Vec<i64> = manager.new_blocks.iter_mut().flat_map(std::mem::take).collect();
            ints(&taken)
        }
        "make_prefix_cache_stats" | "new_step_starts" => Value::Null,
        "evict_blocks" => match member(args, "block_ids").and_then(|ids| manager.check_ids(ids)) {
            Ok(ids) => {
                ids.into_iter().for_each(|block| manager.pool.forget(block));
                Value::Null
            }
            Err(refusal) => return Some(Err(refusal)),
        },
        "reset_prefix_cache" => Value::Bool(manager.pool.reset()),
        _ => return None,
    }))
}

fn about_a_request(manager: &mut Manager, request: &mut Request, op: &str, args: &Value) -> Answer<Value> {
    Ok(match op {
        "append_tokens" => {
            let before = request.hashes.len();
            request.append("token_ids", member(args, "token_ids")?)?;
            let new = request.hashes[before..].iter().map(|hash| hex(hash)).collect();
            object([
                ("num_tokens", Value::Int(request.tokens.len() as i64)),
                ("num_block_hashes", Value::Int(request.hashes.len() as i64)),
                ("new_block_hashes", Value::List(new)),
            ])
        }
        "get_computed_blocks" => {
            let hit = manager.longest_hit(request)?;
            object([
                ("blocks", lists(&hit.lists)),
                ("num_computed_tokens", Value::Int(hit.length)),
                (
                    "num_uncached_common_prefix_tokens",
                    hit.uncached_common_prefix.map_or(Value::Null, Value::Int),
                ),
            ])
        }
        "allocate_slots" => manager.allocate(request, args)?.map_or(Value::Null, |taken| lists(&taken)),
        "get_block_ids" => {
            let groups = 0..manager.config.groups.len();
            let held: Vec<_> = groups.map(|group| manager.blocks(group, &request.id).to_vec()).collect();
            let is_bare = |block: &i64| *block != pool::NULL && manager.pool.keys[*block as usize].is_none();
            let bare: Vec<Vec<i64>> =
                held.iter().map(|list| list.iter().copied().filter(is_bare).collect()).collect();
            object([("blocks", lists(&held)), ("unhashed", lists(&bare))])
        }
        "remove_skipped_blocks" => {
            let total = count("total_computed_tokens", member(args, "total_computed_tokens")?)?;
            (0..manager.config.groups.len()).for_each(|group| manager.remove_skipped(group, &request.id, total));
            Value::Null
        }
        "free" => {
            manager.free(&request.id);
            Value::Null
        }
        _ => return Err(broken("unknown_op", format!("unknown op {op}"))),
    })
}

fn usage(manager: &Manager) -> Value {
    let (free, all) = (manager.pool.num_free(), manager.config.num_blocks - 1);
    let share = if all > 0 { 1.0 - free as f64 / all as f64 } else { 0.0 }; // KV-POOL-12
    object([("num_free_blocks", Value::Int(free)), ("usage", Value::Real(share))])
}

fn snapshot(manager: &Manager) -> Value {
    let pool = &manager.pool;
    let keys = pool.keys.iter().map(|key| Value::List(key.iter().map(|key| hex(key)).collect()));
    let name = |key: &pool::Key| hex(key).text().unwrap_or_default().to_string();
    let order = pool.cached.iter().map(|(key, copies)| (name(key), ints(copies)));
    let mut requests: BTreeMap<&str, Value> = BTreeMap::new();
    for (id, entry) in manager.entries.iter().flatten() {
        if !entry.blocks.is_empty() || entry.num_cached.is_some() {
            requests.insert(id, request_state(manager, id));
        }
    }
    object([
        ("num_blocks", Value::Int(manager.config.num_blocks)),
        ("free_queue", ints(&pool.queue)),
        ("ref_counts", ints(&pool.references)),
        ("block_keys", Value::List(keys.collect())),
        ("lookup_order", Value::Object(order.collect())),
        ("covered_tokens", ints(&pool.covered)),
        ("none_hash", hex(&manager.config.none_hash)),
        ("requests", Value::Object(requests.into_iter().map(|(id, state)| (id.into(), state)).collect())),
        ("popped_blocks", Value::List(Vec::new())),
        ("new_block_ids", lists(&manager.new_blocks)),
        ("step_keys", Value::List(manager.config.groups.iter().map(|_| Value::List(Vec::new())).collect())),
        ("reserved_blocks", Value::List(Vec::new())),
    ])
}

fn request_state(manager: &Manager, id: &str) -> Value {
    let groups = 0..manager.config.groups.len();
    let held: Vec<_> = groups.map(|group| manager.blocks(group, id).to_vec()).collect();
    let counts = manager.entries.iter().map(|group| group.get(id).and_then(|entry| entry.num_cached));
    let counts = counts.map(|number| number.map_or(Value::Null, Value::Int)).collect();
    let mamba = held.iter().map(|_| Value::Null).collect();
    object([
        ("block_ids", lists(&held)),
        ("num_cached_blocks", Value::List(counts)),
        ("mamba", Value::List(mamba)),
    ])
}

fn answer(server: &mut Server, message: &Value) -> Value {
    let id = message.get("id").filter(|id| id.int().is_some()).cloned().unwrap_or(Value::Null);
    match server.perform(message) {
        Ok(result) => object([("id", id), ("result", result)]),
        Err(Refusal { class, message, fields }) => {
            let error = [
                ("class", Value::Text(class.into())),
                ("message", Value::Text(message)),
                ("fields", fields),
            ];
            object([("id", id), ("error", object(error))])
        }
    }
}

#[cfg(test)]
#[path = "../../vectors/reader.rs"]
mod vectors;

/// `KV_VECTORS=FOLDER cargo test`, with a folder that `kvspec vectors -o FOLDER` wrote.
#[test]
fn it_answers_as_the_vectors_say() {
    let Ok(folder) = std::env::var("KV_VECTORS") else { return eprintln!("KV_VECTORS names no folder") };
    let make = || {
        let mut server = Server::default();
        move |message: &Value| answer(&mut server, message)
    };
    let done = vectors::follow_all(std::path::Path::new(&folder), make);
    let (followed, left_out, right) = done.unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{followed} conversations followed, {left_out} left out, {right} answers right");
    assert!(followed > 0);
}

fn main() {
    let mut server = Server::default();
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().split(b'\n') {
        let line = line.expect("standard input can be read");
        let text = String::from_utf8(line).map_err(|_| "no UTF-8".to_string());
        let message = text.and_then(|text| Reader::document(&text));
        let message = message.and_then(|value| match value {
            Value::Object(_) => Ok(value),
            _ => Err("a message is an object".to_string()),
        });
        let message = message.unwrap_or_else(|problem| {
            eprintln!("{NAME}: {problem}; it speaks JSON lines only (cmd+json:)");
            std::process::exit(2);
        });
        let mut said = String::new();
        write(&answer(&mut server, &message), &mut said);
        writeln!(output, "{said}").and_then(|()| output.flush()).expect("standard output can be written");
    }
}
