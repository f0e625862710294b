package cure

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
)

// Text and cure come back as they were made, whatever their arguments hold and however they are wrapped.
func TestSplit(t *testing.T) {
	missing := Errorf("%q is 100%% wrong: %w; write %s; or nothing", "a; b", fs.ErrNotExist, "x; y")
	for _, c := range []struct {
		err        error
		text, cure string
	}{
		{missing, `"a; b" is 100% wrong: file does not exist`, "write x; y; or nothing"},
		{fmt.Errorf("config: %w", missing), `config: "a; b" is 100% wrong: file does not exist`, "write x; y; or nothing"},
		{fmt.Errorf("%w; try again", missing), missing.Error(), "try again"},
		{Errorf("no cure of %d", 1), "no cure of 1", ""},
		{errors.New("a; b; c"), "a; b", "c"},
	} {
		if text, cure := Split(c.err); text != c.text || cure != c.cure {
			t.Errorf("%v: %q and %q, want %q and %q", c.err, text, cure, c.text, c.cure)
		}
	}
	if !errors.Is(missing, fs.ErrNotExist) || missing.Error() != `"a; b" is 100% wrong: file does not exist; write x; y; or nothing` {
		t.Error(missing)
	}
}
