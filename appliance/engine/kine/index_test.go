package kine

import (
	"fmt"
	"strings"
	"testing"
)

// How kine asks for one key and for all below one: on each of several connections SQLite
// goes to their place in an index, and not through all there is.
func TestAKeyIsFoundByTheIndex(t *testing.T) {
	_, path := start(t) // makes the table
	db := openDB(t, path)
	for i := range 3 {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, key := range []string{"/registry/pods/lab/web", "/registry/pods/lab/%"} {
			rows, err := c.QueryContext(t.Context(),
				"EXPLAIN QUERY PLAN SELECT MAX(mkv.id) AS id FROM kine AS mkv WHERE mkv.name LIKE ? ESCAPE '^' GROUP BY mkv.name", key)
			if err != nil {
				t.Fatal(err)
			}
			var plan []string
			for rows.Next() {
				var id, parent, unused int
				var step string
				if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
					t.Fatal(err)
				}
				plan = append(plan, step)
			}
			if err := rows.Close(); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(plan, "; "); !strings.Contains(got, "SEARCH mkv") || strings.Contains(got, "SCAN mkv") {
				t.Errorf("connection %d, %s: %s", i, key, got)
			}
		}
	}
}

// Keys that differ in a capital are two, and so are a key and one that a pattern could
// mean; a list has what is below its prefix and nothing else.
func TestKeysAreTakenByTheLetter(t *testing.T) {
	b, _ := start(t)
	keys := []string{"/registry/roles/lab/view", "/registry/roles/lab/View", "/registry/roles/lab/v_ew", "/registry/Roles/lab/view"}
	for i, key := range keys {
		if _, err := b.Create(t.Context(), key, []byte(fmt.Sprint(i)), 0); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
	}
	for i, key := range keys {
		_, kv, err := b.Get(t.Context(), key, "", 1, 0, false)
		if err != nil || kv == nil || kv.Key != key || string(kv.Value) != fmt.Sprint(i) {
			t.Errorf("%s: %v %v", key, kv, err)
		}
	}
	_, below, err := b.List(t.Context(), "/registry/roles/lab/", "", 0, 0, false)
	if err != nil || len(below) != 3 {
		t.Errorf("%d below /registry/roles/lab/, want 3: %v", len(below), err)
	}
}
