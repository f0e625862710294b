package main

import (
	"math"
	"strings"
	"testing"

	"rivulet/test/harness/apicount"
)

// A verb is as slow as its slowest resource, and lists of many objects have a bound of their own.
func TestLatencyRows(t *testing.T) {
	of := func(bound float64, n uint64) apicount.Durations { return apicount.Durations{bound: n, math.Inf(1): n} }
	rows := latencyRows(apicount.Latencies{
		{Verb: "PUT", Resource: "pods/status", Scope: "resource"}: of(0.1, 900),
		{Verb: "PUT", Resource: "leases", Scope: "resource"}:      of(2, 100),
		{Verb: "LIST", Resource: "pods", Scope: "cluster"}:        of(4, 10),
		{Verb: "LIST", Resource: "nodes", Scope: "resource"}:      of(0.1, 10),
	})
	if len(rows) != 3 {
		t.Fatalf("%+v", rows)
	}
	for i, want := range []struct {
		what, figure string
		value, limit float64
	}{
		{"LIST", "of 10 calls; slowest pods", 3.96, 30},
		{"LIST of one object", "of 10 calls; slowest nodes", 0.099, 1},
		{"PUT of one object", "of 1000 calls; slowest leases, p99 1980 ms of 100", 1.98, 1},
	} {
		r := rows[i]
		if r.What != want.what || !strings.Contains(r.Figure, want.figure) || math.Abs(r.Value-want.value) > 1e-9 || r.Limit != want.limit {
			t.Errorf("%+v, want %+v", r, want)
		}
	}
}
