//! Groups, look-ups, admission (spec/rules/groups.md, full.md, sliding_window.md, coordination.md,
//! manager.md).

use crate::config::{broken, count, flag, invalid, member, stale, Answer, Config, Refusal};
use crate::json::{ints, object, Value};
use crate::pool::{key_of, Key, Pool, NULL};
use crate::sha256::{block_hash, Hash};
use std::collections::BTreeMap;

pub struct Request {
    pub id: String,
    pub tokens: Vec<i64>,
    pub hashes: Vec<Hash>,
    pub none_hash: Hash,
    pub hash_size: Option<i64>, // None: caching is off
    pub computed: Value,        // the scheduler's, as are the next two; checked where they are read
    pub preemptions: Value,
    pub status: Value,
}

impl Request {
    pub fn append(&mut self, field: &str, tokens: &Value) -> Answer<()> {
        let listed = tokens.list().ok_or_else(|| invalid(field, tokens, "a list"))?;
        let mut read = Vec::new();
        for (place, token) in listed.iter().enumerate() {
            let number = token.int().filter(|number| *number >= 0);
            let field = format!("{field}[{place}]");
            read.push(number.ok_or_else(|| invalid(&field, token, "an int of at least 0"))?);
        }
        self.tokens.extend(read);
        let Some(size) = self.hash_size.map(|size| size as usize) else { return Ok(()) };
        while (self.hashes.len() + 1) * size <= self.tokens.len() {
            let start = self.hashes.len() * size; // KV-HASH-1, KV-HASH-4
            let parent = *self.hashes.last().unwrap_or(&self.none_hash);
            self.hashes.push(block_hash(&parent, &self.tokens[start..start + size]));
        }
        Ok(())
    }
}

/// A request in one group: its blocks, and how many leading ones were handed to the cache (KV-GRP-1).
#[derive(Default)]
pub struct Entry {
    pub blocks: Vec<i64>,
    pub num_cached: Option<i64>,
}

pub type Lists = Vec<Vec<i64>>; // one per group

pub struct Hit {
    pub lists: Lists,
    pub length: i64,
    pub uncached_common_prefix: Option<i64>,
}

pub struct Manager {
    pub config: Config,
    pub pool: Pool,
    pub entries: Vec<BTreeMap<String, Entry>>, // per group
    pub new_blocks: Lists,                     // to be zeroed (KV-GRP-10)
}

impl Manager {
    pub fn new(config: Config) -> Manager {
        let pool = Pool::new(config.num_blocks, config.unhashed_to_front);
        let entries = config.groups.iter().map(|_| BTreeMap::new()).collect();
        let new_blocks = vec![Vec::new(); config.groups.len()];
        Manager { config, pool, entries, new_blocks }
    }

    pub fn blocks(&self, group: usize, id: &str) -> &[i64] {
        self.entries[group].get(id).map_or(&[], |entry| &entry.blocks)
    }
    fn size(&self, group: usize) -> i64 {
        self.config.groups[group].block_size
    }
    fn numbers(&self) -> std::ops::Range<usize> {
        0..self.config.groups.len()
    }
    fn is_running(&self, id: &str) -> bool {
        let has_count = |entry: &Entry| entry.num_cached.is_some();
        self.entries.iter().any(|group| group.get(id).is_some_and(has_count)) // KV-GRP-9
    }
    fn num_slots(&self, id: &str) -> i64 {
        let slots = |group| self.blocks(group, id).len() as i64 * self.size(group);
        self.numbers().map(slots).min().unwrap_or(i64::MAX)
    }

    // What a group keeps.

    /// Leading blocks that need not be kept (KV-SW-9).
    fn num_skipped(&self, group: usize, computed: i64) -> i64 {
        self.num_unread(group, computed - self.config.groups[group].extra)
    }

    /// Leading blocks that no later token reads (KV-FULL-1, KV-SW-1).
    fn num_unread(&self, group: usize, computed: i64) -> i64 {
        let window = self.config.groups[group].window;
        window.map_or(0, |window| (computed - window + 1).max(0) / self.size(group))
    }

    /// The key of a block of the request (KV-HASH-5); None if it has no hash there.
    fn key(&self, group: usize, request: &Request, block: i64) -> Option<Key> {
        let per_block = (self.size(group) / self.config.hash_size).max(1);
        let hash = request.hashes.get(((block + 1) * per_block - 1) as usize);
        hash.map(|hash| key_of(hash, group))
    }
    fn find(&self, group: usize, request: &Request, block: i64) -> Option<i64> {
        self.key(group, request, block).and_then(|key| self.pool.find(&key))
    }

    /// Blocks that fill a window but for its last token (KV-SW-2).
    fn tail(&self, group: usize) -> i64 {
        let window = self.config.groups[group].window.unwrap_or(1);
        (window - 1 + self.size(group) - 1) / self.size(group)
    }

    /// Free blocks that it takes to have `slots` (KV-GRP-3, KV-GRP-4).
    fn num_needed(&self, group: usize, id: &str, hits: &[i64], slots: i64, computed: i64) -> i64 {
        let (wanted, held) = (ceiling(slots, self.size(group)), self.blocks(group, id).len() as i64);
        if self.entries[group].get(id).is_some_and(|entry| entry.num_cached.is_some()) {
            return (wanted - held).max(0);
        }
        let skipped = self.num_skipped(group, computed);
        let kept = &hits[((skipped - held).clamp(0, hits.len() as i64)) as usize..];
        let revived = kept.iter().filter(|block| self.pool.is_free(**block)).count() as i64;
        (wanted - skipped.max(hits.len() as i64 + held)).max(0) + revived
    }

    fn take_hits(&mut self, group: usize, id: &str, hits: &[i64], computed: i64) {
        let skipped = self.num_skipped(group, computed) as usize; // KV-GRP-5
        let mut blocks = vec![NULL; skipped];
        for block in hits.iter().skip(skipped) {
            if *block != NULL {
                self.pool.touch(*block);
            }
            blocks.push(*block);
        }
        let num_cached = Some(blocks.len() as i64);
        self.entries[group].insert(id.to_string(), Entry { blocks, num_cached });
    }

    fn extend(&mut self, group: usize, id: &str, slots: i64) -> Vec<i64> {
        let missing = ceiling(slots, self.size(group)) - self.blocks(group, id).len() as i64;
        if missing <= 0 {
            return Vec::new(); // KV-GRP-7
        }
        let taken = self.pool.allocate(missing);
        self.entries[group].entry(id.to_string()).or_default().blocks.extend(&taken);
        if self.config.groups[group].window.is_none() {
            self.new_blocks[group].extend(&taken);
        }
        taken
    }

    /// Null in place of blocks that no later token reads, the last one first (KV-GRP-2).
    pub fn remove_skipped(&mut self, group: usize, id: &str, computed: i64) {
        let skipped = self.num_skipped(group, computed) as usize;
        let Some(entry) = self.entries[group].get_mut(id) else { return };
        let mut removed = Vec::new();
        let end = skipped.min(entry.blocks.len());
        for block in entry.blocks[..end].iter_mut().rev().take_while(|block| **block != NULL) {
            removed.push(std::mem::replace(block, NULL));
        }
        self.pool.release(&removed);
    }

    /// Register full blocks that were not yet, as far as hits can use them (KV-GRP-11, KV-RET-1).
    fn cache(&mut self, group: usize, request: &Request, num_tokens: i64) {
        let (size, end) = (self.size(group), num_tokens / self.size(group));
        let (period, tail) = (self.config.alignment / size, self.tail(group));
        let is_full = self.config.groups[group].window.is_none();
        let keys: Vec<_> = (0..end).map(|block| self.key(group, request, block)).collect();
        let Some(entry) = self.entries[group].get_mut(&request.id) else { return };
        let first = entry.num_cached.unwrap_or(0);
        if first >= end {
            return;
        }
        entry.num_cached = Some(end);
        let blocks = entry.blocks.clone();
        for block in first..end {
            let is_wanted = is_full || tail >= period || block % period >= period - tail;
            let id = blocks[block as usize];
            if let Some(key) = keys[block as usize].clone().filter(|_| is_wanted && id != NULL) {
                self.pool.insert(id, key, (block + 1) * size);
            }
        }
    }

    // Look-ups.

    pub fn longest_hit(&self, request: &Request) -> Answer<Hit> {
        self.check_scheduling(request)?;
        let nothing = vec![Vec::new(); self.config.groups.len()];
        let most = request.tokens.len() as i64 - 1; // one token is computed anyway (KV-MGR-1)
        if !self.config.caching {
            return Ok(Hit { lists: nothing, length: 0, uncached_common_prefix: None });
        }
        if !self.config.is_hybrid() {
            let lists = self.look_up(&[0], request, most);
            let length = lists[0].len() as i64 * self.size(0);
            return Ok(Hit { lists, length, uncached_common_prefix: None });
        }
        let equal = self.equal_groups();
        let is_full = |members: &[usize]| self.config.groups[members[0]].window.is_none();
        let (mut lists, mut length, mut longest) = (nothing, most, 0);
        let mut rounds = 0;
        loop {
            let before = length; // round after round, until nobody shortens it (KV-COORD-5)
            for members in &equal {
                let size = self.size(members[0]);
                if is_full(members) && rounds > 0 {
                    length -= length % size; // a cut, no look-up (KV-COORD-6)
                    continue;
                }
                let found = self.look_up(members, request, length);
                length = found[0].len() as i64 * size;
                longest = longest.max(length);
                for (member, list) in members.iter().zip(found) {
                    lists[*member] = list;
                }
            }
            rounds += 1;
            if length == before || equal.len() == 2 && is_full(&equal[0]) {
                break; // KV-COORD-10
            }
        }
        for group in self.numbers() {
            lists[group].truncate((length / self.size(group)) as usize); // KV-COORD-11
        }
        let uncached_common_prefix = Some(longest - length); // KV-COORD-12
        Ok(Hit { lists, length, uncached_common_prefix })
    }

    /// Groups with equal specs, looked up together, full attention first (KV-COORD-4).
    fn equal_groups(&self) -> Vec<Vec<usize>> {
        let groups = &self.config.groups;
        let firsts = |full: bool| {
            self.numbers().filter(move |g| groups[*g].same_as == *g && groups[*g].window.is_none() == full)
        };
        let members = |first| self.numbers().filter(|g| groups[*g].same_as == first).collect();
        firsts(true).chain(firsts(false)).map(members).collect()
    }

    /// The longest hit of groups with one spec, within `most` tokens: a list for each of them.
    fn look_up(&self, members: &[usize], request: &Request, most: i64) -> Lists {
        let first = members[0];
        let (size, period) = (self.size(first), self.config.alignment / self.size(first));
        let cached = |block| members.iter().all(|group| self.find(*group, request, block).is_some());
        let lists = |start: i64, end: i64| -> Lists {
            let list = |group: &usize| {
                let found = (start..end).map(|block| self.find(*group, request, block).unwrap_or(NULL));
                (0..start).map(|_| NULL).chain(found).collect() // null before the window (KV-SW-3)
            };
            members.iter().map(list).collect()
        };
        let blocks = most / size;
        if self.config.groups[first].window.is_some() {
            let need = self.tail(first).max(1); // a hit is a cached block, for a window of 1, too
            let is_hit = |end: &i64| end % period == 0 && (end - need..*end).all(cached);
            if let Some(end) = (need..=blocks).rev().find(is_hit) {
                return lists(end - need, end); // KV-SW-2
            }
        }
        let run = (0..blocks).take_while(|block| cached(*block)).count() as i64;
        lists(0, run - run % period) // KV-FULL-2 ... KV-FULL-4, KV-SW-4
    }

    // Whole requests.

    pub fn allocate(&mut self, request: &Request, args: &Value) -> Answer<Option<Lists>> {
        let demand = self.check_allocation(request, args)?;
        let (id, hits) = (request.id.as_str(), &demand.hits);
        let computed = demand.computed + demand.num_hit;
        let slots = (computed + demand.num_new).min(self.config.max_model_len); // KV-MGR-4
        for group in self.numbers() {
            self.remove_skipped(group, id, computed); // KV-MGR-6: before it may be refused
        }
        let need = |group: usize| self.num_needed(group, id, &hits[group], slots, computed);
        if self.numbers().map(need).sum::<i64>() > self.pool.num_free() {
            return Ok(None); // KV-MGR-7
        }
        if hits.iter().any(|list| !list.is_empty()) {
            for group in self.numbers() {
                self.take_hits(group, id, &hits[group], computed); // KV-GRP-8: before blocks are taken
            }
        }
        let taken = self.numbers().map(|group| self.extend(group, id, slots)).collect();
        if self.config.caching {
            let end = slots.min(request.tokens.len() as i64); // KV-MGR-10
            let aligned = end - end % self.config.alignment; // KV-COORD-13
            for group in self.numbers() {
                self.cache(group, request, if self.config.is_hybrid() { aligned } else { end });
            }
        }
        Ok(Some(taken))
    }

    pub fn free(&mut self, id: &str) {
        for group in self.numbers() {
            if let Some(entry) = self.entries[group].remove(id) {
                let last_first: Vec<i64> = entry.blocks.into_iter().rev().collect();
                self.pool.release(&last_first); // KV-MGR-12
            }
        }
    }

    fn check_scheduling(&self, request: &Request) -> Answer<()> {
        count("request.num_preemptions", &request.preemptions)?;
        match request.status.text() {
            Some("WAITING" | "RUNNING" | "PREEMPTED") => Ok(()),
            _ => Err(invalid("request.status", &request.status, "WAITING, RUNNING or PREEMPTED")),
        }
    }

    /// Everything an allocation demands of its caller.
    fn check_allocation(&self, request: &Request, args: &Value) -> Answer<Demand> {
        let amount = |name: &str| args.get(name).map_or(Ok(0), |value| count(name, value));
        let num_new = count("num_new_tokens", member(args, "num_new_tokens")?)?;
        let num_hit = amount("num_new_computed_tokens")?;
        lacking(args, request)?;
        if num_new == 0 {
            return Err(invalid("num_new_tokens", &Value::Int(0), "at least 1")); // KV-MGR-3
        }
        self.check_scheduling(request)?;
        let computed = count("request.num_computed_tokens", &request.computed)?;
        if computed > self.num_slots(&request.id) {
            let field = "request.num_computed_tokens"; // KV-REQ-3
            return Err(invalid(field, &request.computed, "at most the slots it holds"));
        }
        let is_gone = |group| {
            let first = self.num_unread(group, computed) as usize; // KV-REQ-9
            self.blocks(group, &request.id).get(first) == Some(&NULL)
        };
        if self.numbers().any(is_gone) {
            let field = "request.num_computed_tokens";
            return Err(invalid(field, &request.computed, "not behind the window"));
        }
        let hits = self.hits(args)?;
        let holds = self.numbers().any(|group| !self.blocks(group, &request.id).is_empty());
        let given = num_hit > 0 || hits.iter().any(|list| !list.is_empty());
        if (holds || self.is_running(&request.id)) && given {
            let number = Value::Int(num_hit); // KV-GRP-9
            return Err(invalid("num_new_computed_tokens", &number, "0, and no hits: it holds blocks"));
        }
        let room = self.config.max_model_len - (computed + num_hit).min(self.config.max_model_len);
        if num_new > room {
            return Err(invalid("num_new_tokens", &Value::Int(num_new), "no more than have slots"));
        }
        for (group, list) in hits.iter().enumerate() {
            self.check_hits(group, request, list, num_hit, computed + num_hit)?;
        }
        Ok(Demand { num_new, num_hit, computed, hits })
    }

    /// As long as they say, each with the key of its place; null only where nothing is read (KV-MGR-8).
    fn check_hits(
        &self, group: usize, request: &Request, list: &[i64], num_hit: i64, computed: i64,
    ) -> Answer<()> {
        if list.len() as i64 * self.size(group) != num_hit {
            let field = format!("new_computed_blocks[{group}]");
            return Err(invalid(&field, &ints(list), "blocks for num_new_computed_tokens"));
        }
        for (index, block) in list.iter().enumerate() {
            let key = self.key(group, request, index as i64);
            let is_right = match *block {
                NULL => key.is_some() && (index as i64) < self.num_unread(group, computed),
                _ => key.is_some() && self.pool.keys[*block as usize] == key,
            };
            if !is_right {
                return Err(stale(group, index, *block));
            }
        }
        Ok(())
    }

    fn hits(&self, args: &Value) -> Answer<Lists> {
        let Some(given) = args.given("new_computed_blocks") else {
            return Ok(vec![Vec::new(); self.config.groups.len()]);
        };
        let lists = given.list().filter(|lists| lists.len() == self.config.groups.len());
        let refusal = || invalid("new_computed_blocks", given, "null, or one list per group");
        lists.ok_or_else(refusal)?.iter().map(|list| self.check_ids(list)).collect()
    }

    pub fn check_ids(&self, ids: &Value) -> Answer<Vec<i64>> {
        let listed = ids.list().ok_or_else(|| invalid("new_computed_blocks", ids, "lists of ints"))?;
        let known = |id: &Value| id.int().filter(|block| (0..self.config.num_blocks).contains(block));
        let unknown = |id: &Value| Refusal {
            class: "UnknownBlockError",
            message: format!("block id {id:?}: must be an int in 0 ... {}", self.config.num_blocks - 1),
            fields: object([
                ("block_id", id.clone()),
                ("num_blocks", Value::Int(self.config.num_blocks)),
            ]),
        };
        listed.iter().map(|id| known(id).ok_or_else(|| unknown(id))).collect()
    }

    /// The request, if its hashes mean something here.
    pub fn own<'a>(&self, request: &'a Request) -> Answer<&'a Request> {
        let size = self.config.caching.then_some(self.config.hash_size);
        let fits = request.hash_size == size && request.none_hash == self.config.none_hash;
        if self.config.caching && !fits {
            let id = Value::Text(request.id.clone());
            return Err(invalid("request", &id, "made for a manager with the same hashes"));
        }
        Ok(request)
    }
}

/// The arguments of an allocation, checked.
struct Demand {
    num_new: i64,
    num_hit: i64,
    computed: i64,
    hits: Lists,
}

/// Options that are not served must be at their defaults, and of their types.
fn lacking(args: &Value, request: &Request) -> Answer<()> {
    let defaults = ["num_external_computed_tokens", "reserved_blocks"];
    for name in ["num_encoder_tokens", "num_lookahead_tokens"].into_iter().chain(defaults) {
        let number = args.get(name).map_or(Ok(0), |value| count(name, value))?;
        if number > 0 && name != "num_encoder_tokens" {
            return Err(crate::config::unsupported(name));
        }
    }
    for name in ["delay_cache_blocks", "full_sequence_must_fit"] {
        if args.get(name).map_or(Ok(false), |value| flag(name, value))? {
            return Err(crate::config::unsupported(name));
        }
    }
    args.get("has_scheduled_reqs").map_or(Ok(true), |value| flag("has_scheduled_reqs", value))?;
    if request.id.is_empty() {
        return Err(broken("bad_message", "a request without a name"));
    }
    Ok(())
}

fn ceiling(a: i64, b: i64) -> i64 {
    a / b + i64::from(a % b != 0)
}
