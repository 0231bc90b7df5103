module kv-vectors

go 1.19
