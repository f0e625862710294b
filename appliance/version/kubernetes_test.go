package version

import "testing"

func TestMinor(t *testing.T) {
	for v, want := range map[string]int{"v1.35.0-k3s3": 35, "v1.35.0+k3s3": 35, "1.9.1": 9} {
		if got, err := Minor(v); err != nil || got != want {
			t.Errorf("%s: %d %v, want %d", v, got, err, want)
		}
	}
	for _, v := range []string{"", "dev", "v2.1.0", "v1", "v1.x"} {
		if got, err := Minor(v); err == nil {
			t.Errorf("%q: %d, want an error", v, got)
		}
	}
}
