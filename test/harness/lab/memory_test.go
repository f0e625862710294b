package lab

import "testing"

func TestMeminfoOfASmallBoard(t *testing.T) {
	const host = "MemTotal:       24684000 kB\nMemFree:        400000 kB\nVmallocTotal:   34359738367 kB\nHugePages_Total:       0\n"
	const want = "MemTotal:         976562 kB\nMemFree:        400000 kB\nVmallocTotal:   34359738367 kB\nHugePages_Total:       0\n"
	if got := meminfo(host, 976562); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
