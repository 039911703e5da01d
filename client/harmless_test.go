package client

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A call that may be asked again is one that only asks, as its name says: whoever
// adds another one decides here.
func TestHarmless(t *testing.T) {
	verbs := map[string]bool{
		"List": true, "Describe": true, "Check": true, "Fetch": true, "Get": true, "Init": true,
		"Create": false, "Delete": false, "Alter": false, "Add": false, "Recover": false, "Fence": false, "Reset": false,
	}
	for _, file := range []protoreflect.FileDescriptor{
		runnelv1.File_runnel_v1_admin_service_proto, runnelv1.File_runnel_v1_group_service_proto,
		runnelv1.File_runnel_v1_metadata_service_proto, runnelv1.File_runnel_v1_producer_service_proto,
	} {
		service := file.Services().Get(0)
		for i := range service.Methods().Len() {
			m := service.Methods().Get(i)
			if m.IsStreamingServer() {
				continue
			}
			name := string(m.Name())
			end := strings.IndexFunc(name[1:], func(r rune) bool { return r >= 'A' && r <= 'Z' }) + 1
			want, known := verbs[name[:end]]
			if got := harmless("/" + string(service.FullName()) + "/" + name); !known || got != want {
				t.Errorf("%s: harmless is %v", m.FullName(), got)
			}
		}
	}
}
