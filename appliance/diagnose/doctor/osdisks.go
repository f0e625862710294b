package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"rivulet/appliance/health"
	"rivulet/image/device/layout"
)

var osDisks = Probe{Kind: health.OSDisks, Title: "disks with the same system", Run: probeOSDisks}

// block is lsblk's entry for a disk or a part of one.
type block struct {
	Name     string  `json:"name"`
	Type     string  `json:"type"`
	UUID     string  `json:"uuid"`
	FSType   string  `json:"fstype"`
	Children []block `json:"children"`
}

// probeOSDisks finds a card and its copy in one machine: then it is undefined which one boots, and which is mounted
// where.
func probeOSDisks(ctx context.Context, e *Env) Result {
	out, err := e.Exec(ctx, "lsblk", "-J", "-o", "NAME,TYPE,UUID,FSTYPE")
	if err != nil {
		return Skipf("lsblk cannot be used: %v", err)
	}
	var all struct {
		Blockdevices []block `json:"blockdevices"`
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return Skipf("lsblk is not understood: %v", err)
	}
	by := map[string][]string{}
	collect(all.Blockdevices, by)
	var twice []string
	for uuid, names := range by {
		if len(names) > 1 {
			slices.Sort(names)
			twice = append(twice, fmt.Sprintf("%s (%s)", strings.Join(names, " and "), uuid))
		}
	}
	if len(twice) > 0 {
		slices.Sort(twice)
		cure := "take the copy out, or give it an identity of its own (tune2fs -U random, and its line in /etc/fstab and cmdline.txt)"
		if e.exists(layout.RunSlot) {
			cure = "take one of them out, back up what you need of it (sudo rivulet backup FILE), and write it anew with rivulet flash, which gives each disk identities of its own"
		}
		return Warnf(cure,
			"the same file system twice: %s; the next boot may take the other", strings.Join(twice, ", "))
	}
	return Passf("every file system is there once")
}

// collect leaves out IDs that are shared on purpose: parts of arrays, volumes and several paths to one disk.
func collect(list []block, by map[string][]string) {
	for _, b := range list {
		shared := strings.HasSuffix(b.FSType, "_member") || b.FSType == "btrfs" || b.FSType == "mpath_member" || b.Type == "mpath" || strings.HasPrefix(b.Type, "raid")
		if b.UUID != "" && !shared && !slices.Contains(by[b.UUID], b.Name) {
			by[b.UUID] = append(by[b.UUID], b.Name)
		}
		if !strings.HasPrefix(b.Type, "raid") && b.Type != "mpath" {
			collect(b.Children, by)
		}
	}
}
