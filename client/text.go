package client

import (
	"context"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// checkText refuses what Protobuf has no way to say: a name that is no text. It
// would fail all the same, as if something were broken.
func checkText(what, text string) error {
	if utf8.ValidString(text) {
		return nil
	}
	return localError(runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "%s %.300q is not valid UTF-8", what, text)
}

// textual is checkText for all strings of a unary call.
func textual(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if m, ok := req.(proto.Message); ok {
		if err := checkTexts(m.ProtoReflect()); err != nil {
			return err
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func checkTexts(m protoreflect.Message) (err error) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList():
			for i := range v.List().Len() {
				if err = checkValue(f, v.List().Get(i)); err != nil {
					break
				}
			}
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if err = checkValue(f.MapKey(), k.Value()); err == nil {
					err = checkValue(f.MapValue(), v)
				}
				return err == nil
			})
		default:
			err = checkValue(f, v)
		}
		return err == nil
	})
	return err
}

func checkValue(f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch f.Kind() {
	case protoreflect.StringKind:
		return checkText(f.TextName(), v.String())
	case protoreflect.MessageKind:
		return checkTexts(v.Message())
	default:
		return nil
	}
}
