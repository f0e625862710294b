// Package gossip tests that addresses, names and data of pods mean the same everywhere: groups that are spread
// over home and two providers, three devices of a lab with the real binary. One announces the addresses of its
// members (./member); etcd and PostgreSQL keep data.
package gossip

import (
	"context"
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/tree"
)

// archive is the member's image, databases that of etcd and PostgreSQL.
var archive, databases = tree.Path("bin", "gossip.tar"), tree.Path("bin", "databases.tar")

var suite = labtest.Suite{
	Needs: map[string]string{archive: "make bin/gossip.tar", databases: "make bin/databases.tar"},
	Prepare: func(ctx context.Context, s *labtest.Suite) error {
		if err := labtest.Peered(ctx, s); err != nil {
			return err
		}
		for _, d := range s.All() {
			for _, file := range []string{archive, databases} {
				if _, err := d.Run(ctx, "rivulet", "ctr", "images", "import", "--label", "rivulet.dev/share=true", "/host"+file); err != nil {
					return err
				}
			}
		}
		return nil
	},
}

func TestMain(m *testing.M) { suite.Main(m, "gossip", lab.Options{Devices: 3}) }
