package cli

import (
	"strings"
	"testing"
	"time"

	"rivulet/appliance/machine/usage"
)

func TestPrintFootprint(t *testing.T) {
	for _, c := range []struct {
		what string
		r    usage.Report
		want string
	}{
		{"a day", usage.Report{
			Processes: []usage.Process{{Name: "supervisor", PSS: 40.4e6}, {Name: "engine", PSS: 260e6}},
			Written:   usage.Writes{Bytes: 50e6, Over: 12 * time.Hour}, Disk: usage.Writes{Bytes: 300e6, Over: 12 * time.Hour}, DiskName: "mmcblk0",
		}, "MEMORY 300 MB of 950: supervisor 40, engine 260\nWRITES 50 MB in 12h0m0s (100 a day) by Rivulet; 300 MB in 12h0m0s (600 a day) by everything on mmcblk0\n"},
		{"just started, no disk of its own", usage.Report{Written: usage.Writes{Bytes: 3e6, Over: 42 * time.Second}},
			"MEMORY 0 MB of 950: \nWRITES 3 MB in 42s by Rivulet\n"},
	} {
		var b strings.Builder
		printFootprint(&b, c.r, 950e6)
		if b.String() != c.want {
			t.Errorf("%s:\n%swant\n%s", c.what, b.String(), c.want)
		}
	}
}
