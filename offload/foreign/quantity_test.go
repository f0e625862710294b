//go:build !race

package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"pgregory.net/rapid"
)

const (
	jsonType  = "application/json"
	protoType = "application/vnd.kubernetes.protobuf"
)

// costly are texts of quantities that nobody may parse here, let alone compare.
var costly = []string{
	"1e999999999", "1E999999999", "1e+999999999", "-1e999999999", "1e-999999999", "1.5e999999999", " 1e999999999 ", "1e0000000000999999999",
	"12345678901234567890e999999999", ".1e999999999", "1e1000", "e999999999", "0e999999999", ".e9999", "+e-9999", strings.Repeat("9", 1<<20), "1." + strings.Repeat("0", 1<<20) + "1",
}

// usual are texts that are used, in fields of all kinds.
var usual = []string{"1", "0", "100m", "1.5Gi", "1E", "1e3", "1e-18", "12345678901234567890", "1e-300", "6.02e23", "", "e", "-", "1e", "x=1e999999999",
	"1e999999999-pods", "deadbeef", "2025e", "e999", "10.0.0.1", strings.Repeat("3", 10_000)}

func TestNumbers(t *testing.T) {
	for _, s := range costly {
		if number([]byte(strings.TrimSpace(s))) == nil {
			t.Errorf("%.40q passes", s)
		}
	}
	for _, s := range usual {
		if err := number([]byte(strings.TrimSpace(s))); err != nil {
			t.Errorf("%.40q: %v", s, err)
		}
	}
}

// podWith is a pod with a request that reads as text, but was never parsed here.
func podWith(t testing.TB, request string) (asJSON, asProto []byte) {
	t.Helper()
	const mark = "77777777"
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Args: []string{"--tolerance", "1e-300"}, Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(mark)}}}}}}
	asJSON, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	asJSON = bytes.ReplaceAll(asJSON, []byte(mark), []byte(request))
	// In protobuf the lengths around it have to fit: the mark becomes as long as the text.
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(strings.Repeat("7", min(len(request), 18)))
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(p, &out); err != nil {
		t.Fatal(err)
	}
	return asJSON, bytes.ReplaceAll(out.Bytes(), []byte(strings.Repeat("7", min(len(request), 18))), []byte(request[:min(len(request), 18)]))
}

func TestBodies(t *testing.T) {
	asJSON, asProto := podWith(t, "1e999999999")
	fine, fineProto := podWith(t, "10000000000")
	list := func(raw []byte) []byte { return fmt.Appendf(nil, `{"kind":"PodList","items":[%s]}`, raw) }
	frame := func(raw []byte) []byte { // of a watch
		var out bytes.Buffer
		event := &metav1.WatchEvent{Type: "ADDED", Object: kruntime.RawExtension{Raw: raw}}
		if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(event, &out); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	for _, c := range []struct {
		what, media string
		body        []byte
		want        error
	}{
		{"a pod", jsonType, asJSON, ErrQuantity},
		{"without a type", "", asJSON, ErrQuantity},
		{"with parameters", "Application/JSON; charset=utf-8", asJSON, ErrQuantity},
		{"a list", jsonType, list(asJSON), ErrQuantity},
		{"protobuf", protoType, asProto, ErrQuantity},
		{"a frame of a watch", protoType + ";stream=watch", frame(asProto), ErrQuantity},
		{"YAML", "application/yaml", []byte("spec:\n  a: &a 1e999999999\n  limits: {cpu: *a}\n"), ErrQuantity},
		{"an apply", "application/apply-patch+yaml", asJSON, ErrQuantity},
		{"a merge patch", "application/merge-patch+json", []byte(`{"spec":{"limits":{"cpu":1e999999999}}}`), ErrQuantity},
		{"a strategic patch", "application/strategic-merge-patch+json", asJSON, ErrQuantity},
		{"a JSON patch", "application/json-patch+json", []byte(`[{"op":"replace","path":"/spec/limits/cpu","value":"1e999999999"}]`), ErrQuantity},
		{"a JSON patch that copies a text", "application/json-patch+json", []byte(`[{"op":"test","Op":"test","op":"copy","from":"/metadata/annotations/x","path":"/spec/limits/cpu"}]`), ErrForm},
		{"a JSON patch that moves a text", "application/json-patch+json", []byte(`[{"op":"add","path":"/metadata/labels/x","value":"y"},{"op":"move","from":"/metadata/labels/x","path":"/spec/limits"}]`), ErrForm},
		{"a JSON patch that moves a label", "application/json-patch+json", []byte(`[{"op":"move","from":"/metadata/labels/x","path":"/metadata/labels/y"}]`), nil},
		{"the first of two", jsonType, []byte(`{"limits":{"cpu":"1e999999999","cpu":"1"}}`), ErrQuantity},
		{"the first of two lists", jsonType, []byte(`{"limits":{"cpu":"1e999999999"},"limits":{}}`), ErrQuantity},
		{"escapes", jsonType, []byte(`{"l\u0069mits":{"cpu":"\u0031e999999999"}}`), ErrQuantity},
		{"a name as encoding/json takes it", jsonType, []byte(`{"LIMIT\u017f":{"cpu":"1e999999999"}}`), ErrQuantity},
		{"a metric", jsonType, []byte(`{"target":{"type":"Value","value":"1e999999999"}}`), ErrQuantity},
		{"the name of a commit", jsonType, []byte(`{"metadata":{"name":"a","labels":{"commit":"12e4567"}},"spec":{"env":[{"name":"COMMIT","value":"e1234567"}]}}`), nil},
		{"no JSON", jsonType, []byte(`{"cpu":"1e9`), ErrForm},
		{"another type", "application/cbor", []byte{0xa0}, ErrForm},
		{"usual JSON", jsonType, fine, nil},
		{"usual protobuf", protoType, fineProto, nil},
		{"a usual watch", protoType, frame(fineProto), nil},
		{"usual YAML", "application/yaml", fine, nil},
	} {
		if err := Body(c.media, c.body); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}

// What a decoder of protobuf reads as a quantity is found, however it is written.
func TestSpellingsOfProtobuf(t *testing.T) {
	long := []byte{0x8a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00} // field 1, length-delimited, as ten bytes
	high := []byte{0x8a, 0x80, 0x80, 0x80, 0x80, 0x01}                         // a number of a field is the lower 32 bits
	text := []byte("\x0b1e999999999")
	for what, raw := range map[string][]byte{"a long key": append(slices.Clone(long), text...), "a number above 32 bits": append(slices.Clone(high), text...),
		"after others": append([]byte{0x10, 0x05, 0x19, 1, 2, 3, 4, 5, 6, 7, 8, 0x25, 1, 2, 3, 4, 0x0a}, text...),
		"in a group":   append([]byte{0x13, 0x0a}, text...),
		"beside the key of a map, whose type is none": append([]byte("\x0e\x03cpu\x12\r\n"), text...), "in a map, with another type": append([]byte("\x08\x03cpu\x10\r\n"), text...), "before nonsense": append(append([]byte{0x0a}, text...), 0xff)} {
		if err := Body(protoType, raw); !errors.Is(err, ErrQuantity) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestQuantitiesOfObjects(t *testing.T) {
	huge := resource.MustParse("1e900") // by its exponent, as 1e999999999
	set := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "a"}, {Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("64Ei")}}}}}}}}
	if err := Quantities(set); err != nil {
		t.Error(err)
	}
	set.Spec.Template.Spec.Overhead = corev1.ResourceList{"cpu": huge}
	for what, obj := range map[string]any{"a map": set, "a list": []kruntime.Object{&corev1.Pod{}, set}, "a pointer": &corev1.EmptyDirVolumeSource{SizeLimit: &huge}, "itself": huge} {
		if err := Quantities(obj); !errors.Is(err, ErrQuantity) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, q := range []string{"1e19", "-1e900", strings.Repeat("9", 40)} {
		if Quantity(resource.MustParse(q)) == nil {
			t.Errorf("%s passes", q)
		}
	}
	if err := Quantities(nil); err != nil {
		t.Error(err)
	}
}

// Every field of a quantity in the types of the Kubernetes API is known by its name.
func TestEveryFieldOfAQuantityIsKnown(t *testing.T) {
	found := 0
	var walk func(at reflect.Type, parent, path string, above []reflect.Type)
	walk = func(at reflect.Type, parent, path string, above []reflect.Type) {
		switch at.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(at.Elem(), parent, path, above)
			return
		case reflect.Struct:
		default:
			return
		}
		if at == quantity {
			found++
			t.Errorf("%s is a quantity: add the name to fields", path)
		}
		if slices.Contains(above, at) {
			return
		}
		for i := range at.NumField() {
			f := at.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case !f.IsExported():
			case name == "":
				walk(f.Type, parent, path, append(slices.Clone(above), at))
			case holdsQuantities(parent, name):
				found++
			default:
				walk(f.Type, name, path+"."+name, append(slices.Clone(above), at))
			}
		}
	}
	for kind, at := range scheme.Scheme.AllKnownTypes() {
		walk(at, "", kind.Kind, nil)
	}
	if found < 50 {
		t.Errorf("only %d were found", found)
	}
}

// A refused body costs a time that is linear in its length, whatever it has. The time is that of the core.
func TestBodiesCostLinearTime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	took := func(media string, body []byte) time.Duration {
		least := time.Hour
		for range 5 {
			var before, after unix.Rusage
			if err := errors.Join(unix.Getrusage(unix.RUSAGE_THREAD, &before), func() error { _ = Body(media, body); return nil }(), unix.Getrusage(unix.RUSAGE_THREAD, &after)); err != nil {
				t.Fatal(err)
			}
			least = min(least, time.Duration(after.Utime.Nano()-before.Utime.Nano()+after.Stime.Nano()-before.Stime.Nano()))
		}
		return least
	}
	for what, of := range map[string]func(n int) (media string, body []byte){
		"many numbers": func(n int) (string, []byte) {
			return jsonType, []byte(`{"limits":[` + strings.Repeat(`"1e999",`, n/8) + `"1e999999999"]}`)
		},
		"one long":            func(n int) (string, []byte) { return jsonType, []byte(`{"limits":"` + strings.Repeat("9", n) + `e1"}`) },
		"nested":              func(n int) (string, []byte) { return protoType, nested(n) },
		"lengths without end": func(n int) (string, []byte) { return protoType, bytes.Repeat([]byte("\x0a\xff\xff\x03"), n/4) },
		"lengths before digits": func(n int) (string, []byte) {
			return protoType, append(bytes.Repeat([]byte("\x0a\xff\x7f1e"), n/10), bytes.Repeat([]byte("9"), n/2)...)
		},
		"many in a list": func(n int) (string, []byte) { return protoType, bytes.Repeat([]byte("\x0a\x051e999"), n/7) },
	} {
		small, large := took(of(64<<10)), took(of(1<<20))
		if large > 16*5*max(small, time.Millisecond) { // 16 times as long; the square would be 256
			t.Errorf("%s: %v for 64 KiB, %v for 1 MiB", what, small, large)
		}
	}
}

// nested are messages in messages, as many as fit.
func nested(n int) []byte {
	var out []byte
	for len(out) < n {
		var length []byte
		for l := len(out); ; l >>= 7 {
			if l < 0x80 {
				length = append(length, byte(l))
				break
			}
			length = append(length, byte(l)|0x80)
		}
		out = append(append([]byte{0x0a}, length...), out...)
		if len(out) > 16<<10 { // the rest is width: building is quadratic
			return bytes.Repeat(out, n/len(out)+1)
		}
	}
	return out
}

// A text passes if and only if parsing and comparing it is quick; whatever passes is parsed and compared here.
func TestWhatPassesIsQuick(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`[+-]?[0-9.]{0,40}([eE][+-]?[0-9]{0,12}|[numkMGTPE]i?|)`).Draw(t, "text")
		if number([]byte(s)) != nil {
			return
		}
		begun := time.Now()
		if q, err := resource.ParseQuantity(s); err == nil {
			q.Cmp(resource.MustParse("4"))
			q.Add(resource.MustParse("1m"))
			_ = q.Value()
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Fatalf("%q took %v", s, took)
		}
	})
}

// FuzzBody: what Body accepts is decoded, and all its quantities compared, within a moment.
func FuzzBody(f *testing.F) {
	for _, q := range []string{"1e999999999", "10000000000"} {
		asJSON, asProto := podWith(f, q)
		f.Add(asJSON)
		f.Add(asProto)
	}
	four := resource.MustParse("4")
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, info := range scheme.Codecs.SupportedMediaTypes() {
			begun := time.Now()
			if Body(info.MediaType, raw) != nil {
				continue
			}
			obj, _, err := info.Serializer.Decode(raw, nil, nil)
			if err != nil {
				continue
			}
			if p, ok := obj.(*corev1.Pod); ok {
				for _, c := range p.Spec.Containers {
					for _, q := range c.Resources.Requests {
						q.Cmp(four)
					}
				}
			}
			_ = Quantities(obj)
			if took := time.Since(begun); took > 20*time.Second {
				t.Fatalf("%s: %v", info.MediaType, took)
			}
		}
	})
}
