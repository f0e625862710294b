// Package ingress tests Ingresses with a controller that others have written (Traefik's,
// ./traefik), on two devices of a lab with the real binary: at home for pods that run
// away, and at a provider that lends its class.
package ingress

import (
	"context"
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/tree"
)

// archive is the controller's image.
var archive = tree.Path("bin", "ingress.tar")

var (
	suite = labtest.Suite{
		Needs: map[string]string{archive: "make bin/ingress.tar"},
		Prepare: func(ctx context.Context, s *labtest.Suite) error {
			if err := labtest.PeeredWithImage(ctx, s); err != nil {
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
)

func TestMain(m *testing.M) { suite.Main(m, "ingress", lab.Options{Devices: 2}) }
