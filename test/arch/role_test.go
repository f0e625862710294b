package arch

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rivulet/appliance/state/role"
)

// noRole are the files of a state folder that do not decide what a device is, with what a restore does with them.
var noRole = map[string]string{
	"state.db": "it is in the backup", "state.db.copy": "goes with state.db", "k3s/": "the datastore and the keys are in the backup, the rest is made again",
	"storage/": "in a backup with volumes", "vclusters/": "in the backup", "vclusters-ended": "stays: which were deleted here; one that a restore brings back is removed from it", "snapshots/": "set aside: of another datastore", "k3s-node/": "in the backup",
	"k3s-settled": "a part of the plan of a restore", "k3s/agent/containerd/rivulet.synced": "as images.json",
	"kubeconfig": "written at each start", "bundle/": "of the version", "versions/": "of the device", "log/": "stays", "history/": "stays",
	"config.good.yaml": "of the configuration", "images.json": "of containerd's images, which stay", "images.synced": "as images.json",
	"k3s-containerd.toml": "written at each start", "k3s-kubelet.yaml": "written at each start", "k3s-scheduler.yaml": "written at each start",
	"k3s-registries.yaml": "written at each start", "k3s-workers.json": "written again by the server", "k3s-join-token": "written again on a worker",
	"backup.json":     "written again by a restore",
	"firstboot.json":  "of the machine and its card",
	"datastore.clean": "of the engine's last end", "probe": "of the disk",
	".backup/": "of a backup at work", ".backup.lock": "of a backup at work", ".restore/": "of a restore at work",
	"before-restore-TIME/": "what was set aside", "before-rollback-TIME/": "what was set aside",
}

// Each file of a device's state is one of those that decide its role, or it is said why it is none. The tests of the
// operations that replace a state go over role.Files.
func TestEachFileOfTheStateHasARoleOrNone(t *testing.T) {
	_, table, _ := strings.Cut(pagesOf(t)["docs/reference/files.md"], "## State")
	table, _, _ = strings.Cut(table, "\n## ")
	var decides []string
	for _, file := range role.Files("") {
		decides = append(decides, filepath.Base(file))
	}
	seen := map[string]bool{}
	for _, row := range strings.Split(table, "\n") {
		if cells := strings.Split(row, "|"); len(cells) > 2 {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				seen[m[1]] = true
				if why := noRole[m[1]]; (why == "") != slices.Contains(decides, m[1]) {
					t.Errorf("%s: is it one of role.Files (appliance/state/role), or is it said in noRole why not? one of the two", m[1])
				}
			}
		}
	}
	for _, name := range decides {
		if !seen[name] {
			t.Errorf("%s is not in docs/reference/files.md", name)
		}
	}
	for name := range noRole {
		if !seen[name] {
			t.Errorf("%s is in noRole and not in docs/reference/files.md", name)
		}
	}
}
