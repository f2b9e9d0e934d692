#if H3_HAVE_FFMPEG

#include <cstring>

#include "media/codecs.h"
#include "media/ffmpeg.h"

namespace h3 {
namespace {

AvFrame decode_picture(std::span<const uint8_t> bytes, const ImageHeader& header, const std::string& path) {
  const AVCodecID id = header.kind == ImageKind::png    ? AV_CODEC_ID_PNG
                       : header.kind == ImageKind::jpeg ? AV_CODEC_ID_MJPEG
                                                        : AV_CODEC_ID_WEBP;
  const LogCapture log;
  const AVCodec* codec = avcodec_find_decoder(id);
  if (codec == nullptr)
    fail(Code::data, "cannot read %s: this FFmpeg has no %s decoder", path.c_str(), avcodec_get_name(id));
  const AvCodec context = new_codec(codec);
  context->thread_count = 1;
  context->err_recognition = AV_EF_CRCCHECK | AV_EF_BITSTREAM | AV_EF_BUFFER | AV_EF_EXPLODE;
  // None of FFmpeg's transforms is that of the IJG library, which the reference decodes with; the float one comes
  // nearest: 1.6 % of the samples of a grey test picture differ from djpeg's by 1, against 2.2 % with the default.
  context->idct_algo = FF_IDCT_FAAN;
  context->max_pixels = (header.width + 128) * (header.height + 128);  // decoders count whole blocks
  const AvPacket packet = new_packet();
  packet->data = const_cast<uint8_t*>(bytes.data());
  packet->size = static_cast<int>(bytes.size());
  AvFrame frame = new_frame();
  int result = avcodec_open2(context.get(), codec, nullptr);
  if (result >= 0) result = avcodec_send_packet(context.get(), packet.get());
  if (result >= 0) result = avcodec_send_packet(context.get(), nullptr);
  if (result >= 0) result = avcodec_receive_frame(context.get(), frame.get());
  if (result < 0) fail(Code::data, "%s is damaged: %s", path.c_str(), log.reason(result).c_str());
  if (frame->width != header.width || frame->height != header.height) {
    fail(Code::data, "%s is damaged: its header says %lldx%lld and its data %dx%d", path.c_str(),
         static_cast<long long>(header.width), static_cast<long long>(header.height), frame->width, frame->height);
  }
  return frame;
}

}  // namespace

Image decode_image(std::span<const uint8_t> bytes, const ImageHeader& header, const std::string& path) {
  static_assert(kPadding >= AV_INPUT_BUFFER_PADDING_SIZE);
  const AvFrame frame = decode_picture(bytes, header, path);
  Image image{.width = frame->width, .height = frame->height, .rgb = {}, .warnings = {}};
  image.rgb.resize(static_cast<size_t>(image.width) * image.height * 3);
  RgbConverter converter;
  using Kind = RgbConverter::Kind;
  converter.kind = header.kind == ImageKind::jpeg   ? Kind::jpeg
                   : header.kind == ImageKind::webp ? Kind::webp
                                                    : Kind::video;
  converter.convert(*frame, image.width, image.height, image.rgb.data(), path);
  if (converter.deep) image.warnings.push_back(path + ": 16-bit samples reduced to 8");
  if (converter.transparent) image.warnings.push_back(path + ": alpha composited on black");
  return image;
}

std::vector<uint8_t> encode_png(const Image& image) {
  const LogCapture log;
  const AVCodec* codec = avcodec_find_encoder(AV_CODEC_ID_PNG);
  if (codec == nullptr) fail(Code::io, "this FFmpeg has no PNG encoder; write .ppm instead");
  const AvCodec context = new_codec(codec);
  context->width = image.width;
  context->height = image.height;
  context->pix_fmt = AV_PIX_FMT_RGB24;
  context->time_base = {1, 1};
  context->thread_count = 1;
  context->compression_level = 6;
  context->flags |= AV_CODEC_FLAG_BITEXACT;
  av_opt_set(context->priv_data, "pred", "up", 0);
  const AvFrame frame = new_frame();
  frame->format = AV_PIX_FMT_RGB24;
  frame->width = image.width;
  frame->height = image.height;
  const AvPacket packet = new_packet();
  int result = avcodec_open2(context.get(), codec, nullptr);
  if (result >= 0) result = av_frame_get_buffer(frame.get(), 0);
  if (result >= 0) {
    av_image_copy_plane(frame->data[0], frame->linesize[0], image.rgb.data(), image.width * 3, image.width * 3,
                        image.height);
    result = avcodec_send_frame(context.get(), frame.get());
  }
  if (result >= 0) result = avcodec_receive_packet(context.get(), packet.get());
  if (result < 0) fail(Code::io, "cannot encode a PNG: %s", log.reason(result).c_str());
  return std::vector<uint8_t>(packet->data, packet->data + packet->size);
}

}  // namespace h3

#endif
