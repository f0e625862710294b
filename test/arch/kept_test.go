package arch

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What is written into the state of the host's network, and where. Other programs change it, so
// whoever writes it puts it back: tables by a Keeper (fabric/nft), and TestEveryTableComesBack
// in appliance/lifetime/cleanup has an owner of each; addresses, routes and settings by a loop
// with a test of its own.
var writers = map[string]map[string]string{
	`\.Tables\(`: {
		"fabric/tunnel/server.go":                        "TestEveryTableComesBack",
		"appliance/machine/firewall/firewall.go":         "TestEveryTableComesBack",
		"appliance/addons/clusterset/weights/weights.go": "TestEveryTableComesBack",
		"appliance/addons/netpol/netpol.go":              "TestEveryTableComesBack",
		"offload/nodeagent/isolation/tables.go":          "TestEveryTableComesBack",
		"offload/nodeagent/peerrules/peerrules.go":       "TestEveryTableComesBack",
	},
	`\.(AddTable|CreateTable)\(|nft\.Tables\{`: {
		"fabric/nft/nft.go":                      "deletes what it has made in the same transaction",
		"fabric/nft/program.go":                  "what a Keeper's tables are made by",
		"fabric/reach/reach.go":                  "closed until the owner comes: fabric/tunnel TestOthersFlushTheRules",
		"offload/nodeagent/homeaddr/homeaddr.go": "in the namespaces of pods, which no other program has rights in",
		"fabric/tunnel/tenants.go":               "closed until the owner comes: fabric/tunnel TestTenantsWithoutRulesHaveNoNetwork",
		"appliance/addons/netpol/netpol.go":      "Try, in a namespace of its own",
		"appliance/diagnose/doctor/try.go":       "in a namespace of its own",
	},
	`\.(RouteAdd|RouteReplace|RouteAppend|RouteChange|AddrAdd|AddrReplace|RuleAdd)\(`: {
		"fabric/tunnel/link.go":               "fabric/tunnel TestOthersChangeTheInterface",
		"appliance/addons/podview/podview.go": "appliance/diagnose/doctor TestWhatPodsReach",
		"appliance/machine/host/address.go":   "appliance/machine/host TestOthersChangeTheNetwork",
		"appliance/machine/host/rules.go":     "appliance/machine/host TestAVPNThatTakesEverything",
		"offload/nodeagent/homeaddr/live.go":  "in the namespaces of pods",

		"appliance/engine/controlplane/confine.go": "in the process's own namespace",
	},
	`"--noflush"`: {
		"appliance/engine/iptables/keep.go":      "appliance/engine/iptables TestFlushedRulesComeBack",
		"appliance/lifetime/cleanup/iptables.go": "removes",
		"appliance/diagnose/doctor/try.go":       "in a namespace of its own",
	},
	`[iI]pset[A-Z(]|"ipset"`: {},
}

func TestWhatOthersMayChangeIsPutBack(t *testing.T) {
	found := map[string]map[string]bool{}
	for pattern := range writers {
		found[pattern] = map[string]bool{}
	}
	for _, top := range []string{"appliance", "cmd", "fabric", "offload", "image/bundle"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			for pattern := range writers {
				if regexp.MustCompile(pattern).Match(text) {
					found[pattern][filepath.ToSlash(name)] = true
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for pattern, files := range writers {
		for _, name := range slices.Sorted(maps.Keys(found[pattern])) {
			if _, known := files[name]; !known {
				t.Errorf("%s writes into the host's network (%s): see that it is put back when another program changes it, test that, and name the test here", name, pattern)
			}
		}
		for name := range files {
			if !found[pattern][name] {
				t.Errorf("%s does not write (%s) any more", name, pattern)
			}
		}
	}
}
