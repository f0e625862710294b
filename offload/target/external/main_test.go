package external_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"rivulet/offload/target/external"
)

// TestMain is the program between a plug-in and its target, as the product's is.
func TestMain(m *testing.M) {
	if verb := external.PluginVerb; len(os.Args) > len(verb) && slices.Equal(os.Args[1:1+len(verb)], verb) {
		out, err := external.RunPlugin(context.Background(), os.Args[1+len(verb):])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Stdout.Write(out)
		os.Exit(0)
	}
	os.Exit(m.Run())
}
