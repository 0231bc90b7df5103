package vectors

import (
	"encoding/json"
	"os"
	"testing"
)

// A pool of blocks for one group of full attention, without caching.
type manager struct {
	blockSize, numBlocks, maxLen int
	free                         []int // the front is taken first
	tables                       map[string][]int
	ids                          map[int]string
	tokens, computed             map[int]int
	keepsOrder                   bool // the mistake: freed blocks come back in the order in which they were taken
}

type message struct {
	Op      string
	Request int
	Set     struct {
		Computed *int `json:"num_computed_tokens"`
	}
	Args struct {
		RequestID string `json:"request_id"`
		Prompt    []int  `json:"prompt_token_ids"`
		Tokens    []int  `json:"token_ids"`
		NumNew    int    `json:"num_new_tokens"`
		Config    struct {
			NumBlocks   int `json:"num_blocks"`
			MaxModelLen int `json:"max_model_len"`
			Groups      []struct {
				Spec struct {
					BlockSize int `json:"block_size"`
				}
			}
		}
	}
}

func (m *manager) answer(raw json.RawMessage) map[string]any {
	var it message
	if err := json.Unmarshal(raw, &it); err != nil {
		panic(err)
	}
	if it.Set.Computed != nil {
		m.computed[it.Request] = *it.Set.Computed
	}
	return map[string]any{"result": m.perform(it)}
}

func (m *manager) perform(it message) any {
	switch it.Op {
	case "hello":
		return map[string]any{"spec_types": []string{"FullAttentionSpec"}, "features": []string{}}
	case "create_manager":
		config := it.Args.Config
		m.numBlocks, m.maxLen, m.blockSize = config.NumBlocks, config.MaxModelLen, config.Groups[0].Spec.BlockSize
		m.free, m.tables, m.ids = nil, map[string][]int{}, map[int]string{}
		m.tokens, m.computed = map[int]int{}, map[int]int{}
		for block := 1; block < m.numBlocks; block++ { // block 0 is the null block
			m.free = append(m.free, block)
		}
	case "make_request":
		m.ids[it.Request], m.tokens[it.Request] = it.Args.RequestID, len(it.Args.Prompt)
		return map[string]any{"num_tokens": len(it.Args.Prompt), "block_hashes": []string{}}
	case "append_tokens":
		m.tokens[it.Request] += len(it.Args.Tokens)
		return map[string]any{"num_tokens": m.tokens[it.Request], "num_block_hashes": 0, "new_block_hashes": []string{}}
	case "get_computed_blocks":
		return map[string]any{"blocks": [][]int{{}}, "num_computed_tokens": 0, "num_uncached_common_prefix_tokens": nil}
	case "allocate_slots":
		table := m.tables[m.ids[it.Request]]
		slots := m.computed[it.Request] + it.Args.NumNew
		if slots > m.maxLen {
			slots = m.maxLen
		}
		need := (slots+m.blockSize-1)/m.blockSize - len(table)
		if need > len(m.free) {
			return nil
		}
		taken := []int{}
		if need > 0 {
			taken = append(taken, m.free[:need]...)
		}
		m.free = m.free[len(taken):]
		m.tables[m.ids[it.Request]] = append(append([]int{}, table...), taken...)
		return [][]int{taken}
	case "free":
		table := m.tables[m.ids[it.Request]]
		delete(m.tables, m.ids[it.Request])
		freed := []int{} // the last one comes to the front
		for i := range table {
			if m.keepsOrder {
				freed = append(freed, table[i])
			} else {
				freed = append(freed, table[len(table)-1-i])
			}
		}
		m.free = append(freed, m.free...)
	case "get_usage":
		return map[string]any{"num_free_blocks": len(m.free), "usage": 1 - float64(len(m.free))/float64(m.numBlocks-1)}
	}
	return nil
}

func followWith(t *testing.T, keepsOrder bool) (Done, error) {
	folder := os.Getenv("KV_VECTORS")
	if folder == "" {
		t.Skip("KV_VECTORS names no folder that `kvspec vectors` wrote")
	}
	return FollowAll(folder, func() Answer { return (&manager{keepsOrder: keepsOrder}).answer })
}

func TestItAnswersAsTheVectorsSay(t *testing.T) {
	done, err := followWith(t, false)
	if err != nil || done.Followed == 0 {
		t.Fatal(done, err)
	}
	t.Logf("%d conversations followed, %d left out, %d answers right", done.Followed, done.LeftOut, done.Right)
}

func TestAMistakeIsFound(t *testing.T) {
	if _, err := followWith(t, true); err == nil {
		t.Fatal("nothing found")
	} else {
		t.Log(err)
	}
}
