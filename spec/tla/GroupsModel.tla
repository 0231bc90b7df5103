---------------------------- MODULE GroupsModel -----------------------------
(* Groups by themselves: what a manager does in one allocation is done here step by
   step, in every order that is legal. texts[r] is what request r consists of. *)
EXTENDS Hits

CONSTANT NumTokens       \* the alphabet is 0 .. NumTokens - 1, texts have up to MaxTokens

VARIABLE cache             \* a cache (see Groups), and the texts

Texts == UNION {[1 .. n -> 0 .. NumTokens - 1] : n \in 1 .. MaxTokens}

Init ==
  cache = [pool |-> NewPool, lists |-> NewCache.lists, counts |-> NewCache.counts,
       texts |-> [r \in Requests |-> <<>>]]

IsThere(r) == cache.texts[r] # <<>>
HoldsNothing(r) == \A g \in Groups : cache.lists[r][g] = <<>> /\ ~HasEntry(cache, r, g)
SlotsOf(r) == BlockSizes[1] * Len(cache.lists[r][1])

Come(r, text) == ~IsThere(r) /\ cache' = [cache EXCEPT !.texts[r] = text]

Hit(r) ==                                                       \* KV-GRP-5, KV-GRP-9
  /\ IsThere(r)
  /\ HoldsNothing(r)
  /\ cache' = TakeAllHits(cache, r, LookUp(cache, cache.texts[r]), HitTokens(LookUp(cache, cache.texts[r])))

Grow(r, n) ==                                                   \* KV-GRP-7, KV-GRP-8
  /\ n <= Len(cache.texts[r])
  /\ n > SlotsOf(r)
  /\ NumGroups * (Cdiv(n, BlockSizes[1]) - Len(cache.lists[r][1])) <= NumFree(cache.pool)
  /\ cache' = ExtendAll(cache, r, n)

Cache(r, n) ==                                                  \* KV-GRP-11, KV-POOL-14
  /\ n <= Len(cache.texts[r])
  /\ n <= SlotsOf(r)
  /\ cache' = CacheAll(cache, r, cache.texts[r], Len(cache.texts[r]), n)

Remove(r, n) ==                                                 \* KV-GRP-2, KV-POOL-7
  /\ n <= SlotsOf(r)
  /\ cache' = RemoveAllSkipped(cache, r, n)

Leave(r) ==                                                     \* KV-POOL-7, KV-POOL-8
  IsThere(r) /\ cache' = [FreeAll(cache, r) EXCEPT !.texts[r] = <<>>]

Evict(b) ==                                                     \* KV-POOL-10
  cache.pool.keys[b] # NoKey /\ cache' = [cache EXCEPT !.pool = Forget(cache.pool, {b})]

Next ==
  \/ \E r \in Requests : \E text \in Texts : Come(r, text)
  \/ \E r \in Requests : Hit(r)
  \/ \E r \in Requests : \E n \in 1 .. MaxTokens : Grow(r, n)
  \/ \E r \in Requests : \E n \in 1 .. MaxTokens : Cache(r, n)
  \/ \E r \in Requests : \E n \in 1 .. MaxTokens : Remove(r, n)
  \/ \E r \in Requests : Leave(r)
  \/ \E b \in Blocks : Evict(b)

Spec == Init /\ [][Next]_c

has_the_right_shape == PoolHasTheRightShape(cache.pool)
null_block_is_apart == NullIsApart(cache.pool)
free_queue_has_no_duplicates == QueueHasNoDuplicates(cache.pool)
free_means_unreferenced == FreeIsUnreferenced(cache.pool)
references_are_accounted_for == AccountedFor(cache, <<>>)
keys_and_lookups_agree == KeysAgree(cache.pool)
keys_are_listed_once == KeysListedOnce(cache.pool)
a_block_has_one_place == HasOnePlace(cache)
cached_blocks_belong_to_their_group == KeysOfGroup(cache)
cached_counts_fit_the_lists == CountsFit(cache)
nulls_come_first == NullsFirst(cache)
keys_of_one_place == KeysOfPlaces(cache)
blocks_carry_the_text_of_their_requests == \A r \in Requests : KeysOfText(cache, r, cache.texts[r])
=============================================================================
