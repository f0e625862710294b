// Package gossip tests that addresses of pods mean the same everywhere: a group whose members
// announce their own addresses (./member) is spread over home and two providers, three devices
// of a lab with the real binary.
package gossip

import (
	"context"
	"testing"

	"rivulet/test/lab"
	"rivulet/test/labtest"
	"rivulet/test/tree"
)

// archive is the member's image.
var archive = tree.Path("bin", "gossip.tar")

var suite = labtest.Suite{
	Needs: map[string]string{archive: "make bin/gossip.tar"},
	Prepare: func(ctx context.Context, s *labtest.Suite) error {
		if err := labtest.Peered(ctx, s); err != nil {
			return err
		}
		for _, d := range s.All() {
			if _, err := d.Run(ctx, "rivulet", "ctr", "images", "import", "--label", "rivulet.dev/share=true", "/host"+archive); err != nil {
				return err
			}
		}
		return nil
	},
}

func TestMain(m *testing.M) { suite.Main(m, "gossip", lab.Options{Devices: 3}) }
